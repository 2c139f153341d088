"""Causal depthwise convolution over four steps, with bias and SiLU, as every Mamba block has it."""

import torch
import torch.nn as nn

PRECISION = "float32"  # of the arithmetic; storage is DTYPE
DTYPE = "bfloat16"
BATCH = 8
CHANNELS = 5120  # Mamba 2.8B
SEQUENCE = 2048
WIDTH = 4

CASES = [
    {"name": "ragged", "BATCH": 2, "CHANNELS": 17, "SEQUENCE": 500, "cpu": True},
    {"name": "short", "BATCH": 3, "CHANNELS": 64, "SEQUENCE": 3, "DTYPE": "float32", "cpu": True},  # less than WIDTH
    {"name": "one_long_sequence", "BATCH": 1, "CHANNELS": 4096, "SEQUENCE": 32768},
    {"name": "width_3", "BATCH": 4, "WIDTH": 3},
    {"name": "prime", "BATCH": 2, "CHANNELS": 13, "SEQUENCE": 1031, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[b, c, t] = silu(bias[c] + sum_w weight[c, w] x[b, c, t - WIDTH + 1 + w]), x = 0 before the beginning"""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        dtype = getattr(torch, DTYPE)
        self.weight = nn.Parameter((torch.randn(channels, width) * width**-0.5).to(dtype))
        self.bias = nn.Parameter(torch.randn(channels).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width, length = self.weight.shape[1], x.shape[-1]
        padded = nn.functional.pad(x, (width - 1, 0)).float()
        weight, summed = self.weight.float(), self.bias.float()[:, None]
        for step in range(width):  # as shifted products, which torch.compile fuses; a depthwise conv1d it leaves alone
            summed = summed + weight[:, step, None] * padded[..., step : step + length]
        return nn.functional.silu(summed).to(x.dtype)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SEQUENCE).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return [CHANNELS, WIDTH]
