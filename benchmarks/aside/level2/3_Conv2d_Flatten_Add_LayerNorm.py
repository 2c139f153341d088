import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Patch embedding of a vision transformer with its positions and the norm before the first block.

    Source: VisionTransformer of CLIP, github.com/openai/CLIP, clip/model.py (conv1, positional_embedding,
    ln_pre; without the class token); Dosovitskiy et al. 2021 (arXiv:2010.11929)
    """

    def __init__(self, channels, size, patch, dim):
        super().__init__()
        self.conv = nn.Conv2d(channels, dim, patch, stride=patch, bias=False)
        self.positions = nn.Parameter(dim**-0.5 * torch.randn((size // patch) ** 2, dim))
        self.norm = nn.LayerNorm(dim)

    def forward(self, image):
        """image: (batch, channels, size, size) float32. Returns (batch, patches, dim)."""
        x = self.conv(image).flatten(2).transpose(1, 2)
        return self.norm(x + self.positions)


batch_size = 128
channels = 3
size = 224
patch = 16
dim = 768


def get_inputs():
    return [torch.randn(batch_size, channels, size, size)]


def get_init_inputs():
    return [channels, size, patch, dim]
