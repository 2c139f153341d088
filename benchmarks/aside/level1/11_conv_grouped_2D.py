import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Grouped 3 x 3 convolution: 32 groups of 8 channels.

    Source: ResNeXt 32x8d, Xie et al. 2017 (arXiv:1611.05431); resnext101_32x8d of torchvision,
    github.com/pytorch/vision, torchvision/models/resnet.py
    """

    def __init__(self, channels, groups, kernel_size):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel_size, padding=kernel_size // 2, groups=groups, bias=False)

    def forward(self, x):
        """x: (batch, channels, height, width) float32."""
        return self.conv(x)


batch_size = 64
channels = 256
groups = 32
height = 56
width = 56
kernel_size = 3


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, groups, kernel_size]
