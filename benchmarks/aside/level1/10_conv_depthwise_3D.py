import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Depthwise 3 x 3 x 3 convolution over a video.

    Source: ir-CSN, channel-separated networks, Tran et al. 2019 (arXiv:1904.02811),
    github.com/facebookresearch/VMZ
    """

    def __init__(self, channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv3d(channels, channels, kernel_size, padding=kernel_size // 2, groups=channels, bias=False)

    def forward(self, x):
        """x: (batch, channels, frames, height, width) float32."""
        return self.conv(x)


batch_size = 8
channels = 128
frames = 16
height = 56
width = 56
kernel_size = 3


def get_inputs():
    return [torch.randn(batch_size, channels, frames, height, width)]


def get_init_inputs():
    return [channels, kernel_size]
