import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Cumulative layer norm: each frame is normalised over all channels of itself and of the frames before it.

    Source: cLN of Conv-TasNet, github.com/naplab/Conv-TasNet, utility/models.py; Luo and Mesgarani 2019
    (arXiv:1809.07454)
    """

    def __init__(self, channels):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(1, channels, 1) + 0.5)
        self.bias = nn.Parameter(torch.randn(1, channels, 1))

    def forward(self, x):
        """x: (batch, channels, frames) float32."""
        _, channels, frames = x.shape
        total = torch.cumsum(x.sum(dim=1), dim=1)
        power = torch.cumsum(x.pow(2).sum(dim=1), dim=1)
        count = torch.arange(1, frames + 1, device=x.device, dtype=x.dtype) * channels
        mean = total / count
        variance = power / count - mean.pow(2)
        scale = torch.rsqrt(variance + 1e-8)
        return (x - mean.unsqueeze(1)) * scale.unsqueeze(1) * self.gain + self.bias


batch_size = 32
channels = 512
frames = 6400


def get_inputs():
    return [torch.randn(batch_size, channels, frames)]


def get_init_inputs():
    return [channels]
