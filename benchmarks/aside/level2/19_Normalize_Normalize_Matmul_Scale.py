import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Cosine similarities of images and texts, over a learned temperature.

    Source: CLIP, github.com/openai/CLIP, clip/model.py (forward); Radford et al. 2021 (arXiv:2103.00020)
    """

    def __init__(self, temperature):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.log(torch.tensor(1.0 / temperature)))

    def forward(self, images, texts):
        """images: (images, dim), texts: (texts, dim), float32. Returns (images, texts)."""
        images = images / images.norm(dim=1, keepdim=True)
        texts = texts / texts.norm(dim=1, keepdim=True)
        return self.logit_scale.exp() * images @ texts.t()


images = 8192
texts = 8192
dim = 512
temperature = 0.07


def get_inputs():
    return [torch.randn(images, dim), torch.randn(texts, dim)]


def get_init_inputs():
    return [temperature]
