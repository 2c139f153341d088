"""Layer normalisation over the last dimension, with weight and bias."""

import torch
import torch.nn as nn

PRECISION = "float32"
DTYPE = "float32"
ROWS = 16384
COLS = 4096

CASES = [
    {"name": "ragged", "ROWS": 129, "COLS": 1000, "cpu": True},
    {"name": "narrow", "ROWS": 65, "COLS": 77, "cpu": True},
    {"name": "timed_columns", "ROWS": 16, "cpu": True},
    {"name": "bfloat16", "ROWS": 8192, "COLS": 5120, "DTYPE": "bfloat16"},
    {"name": "prime", "ROWS": 31, "COLS": 2053, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias"""

    def __init__(self, cols: int, eps: float) -> None:
        super().__init__()
        dtype = getattr(torch, DTYPE)
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(cols).to(dtype))
        self.bias = nn.Parameter(torch.randn(cols).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return [COLS, 1e-5]
