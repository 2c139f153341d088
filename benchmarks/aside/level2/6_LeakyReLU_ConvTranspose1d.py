import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    First upsampling of a vocoder, by eight.

    Source: Generator of HiFi-GAN V1, github.com/jik876/hifi-gan, models.py and config_v1.json; Kong et al. 2020
    (arXiv:2010.05646)
    """

    def __init__(self, in_channels, out_channels, kernel_size, stride):
        super().__init__()
        self.up = nn.ConvTranspose1d(
            in_channels, out_channels, kernel_size, stride=stride, padding=(kernel_size - stride) // 2
        )

    def forward(self, x):
        """x: (batch, in_channels, frames) float32. Returns (batch, out_channels, stride * frames)."""
        return self.up(F.leaky_relu(x, 0.1))


batch_size = 16
in_channels = 512
out_channels = 256
frames = 1024
kernel_size = 16
stride = 8


def get_inputs():
    return [torch.randn(batch_size, in_channels, frames)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride]
