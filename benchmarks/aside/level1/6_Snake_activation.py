import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Periodic activation with a learned frequency for each channel: x + sin(alpha x)^2 / alpha.

    Source: Snake of BigVGAN, github.com/NVIDIA/BigVGAN, activations.py; Ziyin et al. 2020 (arXiv:2006.08195)
    """

    def __init__(self, channels):
        super().__init__()
        self.alpha = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x):
        """x: (batch, channels, samples) float32."""
        alpha = self.alpha[None, :, None]
        return x + (1.0 / (alpha + 1e-9)) * torch.sin(x * alpha).pow(2)


batch_size = 16
channels = 192
samples = 32768


def get_inputs():
    return [torch.randn(batch_size, channels, samples)]


def get_init_inputs():
    return [channels]
