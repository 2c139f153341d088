import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    Up transition of a V-Net: doubles the volume, joins what the other side had, and convolves both.

    Source: UpTransition, github.com/mattmacy/vnet.pytorch, vnet.py (with a kernel of 3, without norm);
    Milletari et al. 2016 (arXiv:1606.04797)
    """

    def __init__(self, channels, skip_channels, out_channels):
        super().__init__()
        self.up = nn.ConvTranspose3d(channels, out_channels, 2, stride=2)
        self.conv = nn.Conv3d(out_channels + skip_channels, out_channels, 3, padding=1)

    def forward(self, x, skip):
        """x: (batch, channels, size, size, size), skip: (batch, skip_channels, 2 size, 2 size, 2 size), float32."""
        return self.conv(torch.cat([F.elu(self.up(x)), skip], dim=1))


batch_size = 2
channels = 64
skip_channels = 32
out_channels = 32
size = 32


def get_inputs():
    x = torch.randn(batch_size, channels, size, size, size)
    skip = torch.randn(batch_size, skip_channels, 2 * size, 2 * size, 2 * size)
    return [x, skip]


def get_init_inputs():
    return [channels, skip_channels, out_channels]
