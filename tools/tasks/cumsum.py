"""Cumulative sum along the last dimension: a scan, whose later elements need all earlier ones."""

import torch
import torch.nn as nn

PRECISION = "float32"  # of the arithmetic; storage is DTYPE
DTYPE = "float32"
ROWS = 8192
COLS = 8192

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 1000, "cpu": True},
    {"name": "narrow", "ROWS": 63, "COLS": 129, "cpu": True},
    {"name": "timed_columns", "ROWS": 3, "cpu": True},
    {"name": "long_rows", "ROWS": 64, "COLS": 1048576},  # one program a row would leave half of the GPU idle
    {"name": "prime", "ROWS": 11, "COLS": 2053, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[i, j] = sum_{k <= j} x[i, k]"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return []
