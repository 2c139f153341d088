"""Layer normalisation with weight and bias that start as ones and zeros, as nn.LayerNorm's do."""

import torch
from torch import nn

PRECISION = "float32"
ROWS = 4096
COLS = 2048

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 100, "cpu": True},
    {"name": "narrow", "ROWS": 9, "COLS": 47, "cpu": True},
    {"name": "hidden", "ROWS": 13, "COLS": 131, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias"""

    def __init__(self, cols: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[object]:
    return [COLS]
