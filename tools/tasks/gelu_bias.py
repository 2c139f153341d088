"""Bias and exact (erf) GELU, the epilogue between the two linear layers of a transformer block."""

import torch
import torch.nn as nn

PRECISION = "float32"
DTYPE = "float32"
ROWS = 8192
COLS = 8192

CASES = [
    {"name": "ragged", "ROWS": 257, "COLS": 500, "cpu": True},
    {"name": "narrow", "ROWS": 63, "COLS": 129, "cpu": True},
    {"name": "timed_columns", "ROWS": 16, "cpu": True},
    {"name": "bfloat16", "ROWS": 8192, "COLS": 11008, "DTYPE": "bfloat16"},
    {"name": "prime", "ROWS": 37, "COLS": 1031, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = gelu(x + bias)"""

    def __init__(self, cols: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(cols).to(getattr(torch, DTYPE)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x + self.bias)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return [COLS]
