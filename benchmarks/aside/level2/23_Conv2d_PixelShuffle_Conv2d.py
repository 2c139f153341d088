import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Tail of a super-resolution network: upsampling by sub-pixel convolution, then the colours.

    Source: EDSR, github.com/sanghyun-son/EDSR-PyTorch, src/model/common.py (Upsampler) and edsr.py; Lim et al.
    2017 (arXiv:1707.02921); PixelShuffle after ESPCN, Shi et al. 2016 (arXiv:1609.05158)
    """

    def __init__(self, channels, factor, colours):
        super().__init__()
        self.up = nn.Conv2d(channels, channels * factor**2, 3, padding=1)
        self.shuffle = nn.PixelShuffle(factor)
        self.tail = nn.Conv2d(channels, colours, 3, padding=1)

    def forward(self, x):
        """x: (batch, channels, height, width) float32. Returns (batch, colours, factor height, factor width)."""
        return self.tail(self.shuffle(self.up(x)))


batch_size = 16
channels = 64
height = 96
width = 96
factor = 2
colours = 3


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, factor, colours]
