import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Depthwise convolution over time with a long kernel.

    Source: convolution module of the Conformer, Gulati et al. 2020 (arXiv:2005.08100);
    github.com/espnet/espnet, espnet/nets/pytorch_backend/conformer/convolution.py (kernel of 31)
    """

    def __init__(self, channels, kernel_size):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel_size, padding=(kernel_size - 1) // 2, groups=channels)

    def forward(self, x):
        """x: (batch, channels, frames) float32."""
        return self.conv(x)


batch_size = 32
channels = 512
frames = 4000
kernel_size = 31


def get_inputs():
    return [torch.randn(batch_size, channels, frames)]


def get_init_inputs():
    return [channels, kernel_size]
