import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    Basic block of a 3D U-Net for segmentation.

    Source: ConvDropoutNormReLU of nnU-Net, github.com/MIC-DKFZ/dynamic-network-architectures,
    dynamic_network_architectures/building_blocks/simple_conv_blocks.py; Isensee et al. 2018 (arXiv:1809.10486)
    """

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, 3, padding=1)
        self.norm = nn.InstanceNorm3d(out_channels, affine=True)

    def forward(self, x):
        """x: (batch, in_channels, depth, height, width) float32. Returns as many places of out_channels."""
        return F.leaky_relu(self.norm(self.conv(x)), 0.01)


batch_size = 2
in_channels = 32
out_channels = 64
depth = 64
height = 80
width = 80


def get_inputs():
    return [torch.randn(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
