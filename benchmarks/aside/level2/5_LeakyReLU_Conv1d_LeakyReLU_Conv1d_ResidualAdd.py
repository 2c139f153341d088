import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    One dilated step of the multi-receptive-field fusion of a vocoder.

    Source: ResBlock1 of HiFi-GAN, github.com/jik876/hifi-gan, models.py; Kong et al. 2020 (arXiv:2010.05646)
    """

    def __init__(self, channels, kernel_size, dilation):
        super().__init__()
        wide = dilation * (kernel_size - 1) // 2
        self.conv1 = nn.Conv1d(channels, channels, kernel_size, padding=wide, dilation=dilation)
        self.conv2 = nn.Conv1d(channels, channels, kernel_size, padding=(kernel_size - 1) // 2)

    def forward(self, x):
        """x: (batch, channels, samples) float32."""
        y = self.conv1(F.leaky_relu(x, 0.1))
        y = self.conv2(F.leaky_relu(y, 0.1))
        return x + y


batch_size = 16
channels = 256
samples = 8192
kernel_size = 3
dilation = 5


def get_inputs():
    return [torch.randn(batch_size, channels, samples)]


def get_init_inputs():
    return [channels, kernel_size, dilation]
