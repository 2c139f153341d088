import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    A residual layer of WaveNet: causal dilated convolution, gated activation, 1 x 1 convolution.

    Source: ResidualConv1dGLU of github.com/r9y9/wavenet_vocoder, wavenet_vocoder/modules.py; van den Oord et
    al. 2016 (arXiv:1609.03499)
    """

    def __init__(self, channels, kernel_size, dilation):
        super().__init__()
        self.past = (kernel_size - 1) * dilation
        self.conv = nn.Conv1d(channels, 2 * channels, kernel_size, dilation=dilation)
        self.out = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        """x: (batch, channels, samples) float32."""
        a, b = self.conv(F.pad(x, (self.past, 0))).chunk(2, dim=1)
        return (self.out(torch.tanh(a) * torch.sigmoid(b)) + x) * 0.5**0.5


batch_size = 8
channels = 256
samples = 16000
kernel_size = 3
dilation = 8


def get_inputs():
    return [torch.randn(batch_size, channels, samples)]


def get_init_inputs():
    return [channels, kernel_size, dilation]
