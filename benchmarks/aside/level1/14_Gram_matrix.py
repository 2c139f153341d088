import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Gram matrix of a feature map's channels, over the number of its elements.

    Source: gram_matrix of fast neural style, github.com/pytorch/examples,
    fast_neural_style/neural_style/utils.py; Gatys et al. 2016 (arXiv:1508.06576)
    """

    def __init__(self):
        super().__init__()

    def forward(self, features):
        """features: (batch, channels, height, width) float32. Returns (batch, channels, channels)."""
        b, c, h, w = features.shape
        flat = features.view(b, c, h * w)
        return flat.bmm(flat.transpose(1, 2)) / (c * h * w)


batch_size = 32
channels = 512
height = 64
width = 64


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return []
