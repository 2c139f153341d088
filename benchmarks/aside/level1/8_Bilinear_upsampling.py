import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    Bilinear upsampling by two.

    Source: Up of Pytorch-UNet, github.com/milesial/Pytorch-UNet, unet/unet_parts.py (with the corners not
    aligned, as in DeepLabV3 of torchvision)
    """

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        """x: (batch, channels, height, width) float32. Returns (batch, channels, factor height, factor width)."""
        return F.interpolate(x, scale_factor=self.factor, mode="bilinear", align_corners=False)


batch_size = 16
channels = 64
height = 240
width = 320
factor = 2


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [factor]
