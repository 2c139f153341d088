import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    Gated linear unit: one half of the channels times the sigmoid of the other half.

    Source: gated convolutional networks, Dauphin et al. 2017 (arXiv:1612.08083); conv module of the Conformer
    encoder, github.com/espnet/espnet, espnet/nets/pytorch_backend/conformer/convolution.py
    """

    def __init__(self):
        super().__init__()

    def forward(self, x):
        """x: (batch, 2 * channels, frames) float32. Returns (batch, channels, frames)."""
        return F.glu(x, dim=1)


batch_size = 32
channels = 512
frames = 8000


def get_inputs():
    return [torch.randn(batch_size, 2 * channels, frames)]


def get_init_inputs():
    return []
