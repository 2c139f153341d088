import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    Up block of a U-Net: doubles height and width, halves channels.

    Source: Up of Pytorch-UNet, github.com/milesial/Pytorch-UNet, unet/unet_parts.py; its norm and activation as
    in DDPM's U-Net, github.com/hojonathanho/diffusion, diffusion_tf/models/unet.py, Ho et al. 2020
    (arXiv:2006.11239)
    """

    def __init__(self, in_channels, out_channels, groups):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_channels, out_channels, 2, stride=2)
        self.norm = nn.GroupNorm(groups, out_channels)

    def forward(self, x):
        """x: (batch, in_channels, height, width) float32. Returns (batch, out_channels, 2 height, 2 width)."""
        return F.silu(self.norm(self.up(x)))


batch_size = 32
in_channels = 256
out_channels = 128
height = 64
width = 64
groups = 32


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, groups]
