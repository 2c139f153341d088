"""Softmax over the last dimension of a matrix."""

import torch
import torch.nn as nn

PRECISION = "float32"
DTYPE = "float32"
ROWS = 8192
COLS = 8192

CASES = [
    {"name": "ragged", "ROWS": 257, "COLS": 1000, "cpu": True},
    {"name": "narrow", "ROWS": 63, "COLS": 129, "cpu": True},
    {"name": "timed_columns", "ROWS": 16, "cpu": True},
    {"name": "wide_bfloat16", "ROWS": 1024, "COLS": 50257, "DTYPE": "bfloat16"},
    {"name": "prime", "ROWS": 37, "COLS": 2053, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[i, j] = exp(x[i, j]) / sum_k exp(x[i, k])"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return []
