import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    Short causal depthwise convolution before the state-space layer.

    Source: Mamba, github.com/state-spaces/mamba, mamba_ssm/modules/mamba_simple.py (conv1d and act); Gu and Dao
    2023 (arXiv:2312.00752), at the width of mamba-1.4b
    """

    def __init__(self, channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel_size, padding=kernel_size - 1, groups=channels)

    def forward(self, x):
        """x: (batch, channels, length) float32."""
        return F.silu(self.conv(x)[..., : x.shape[-1]])


batch_size = 8
channels = 4096
length = 4096
kernel_size = 4


def get_inputs():
    return [torch.randn(batch_size, channels, length)]


def get_init_inputs():
    return [channels, kernel_size]
