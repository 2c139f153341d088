"""Sum over the last dimension of a matrix: pure memory traffic."""

import torch
import torch.nn as nn

PRECISION = "float32"
DTYPE = "float32"
ROWS = 16384
COLS = 8192

CASES = [
    {"name": "ragged", "ROWS": 257, "COLS": 1000, "cpu": True},
    {"name": "narrow", "ROWS": 63, "COLS": 129, "cpu": True},
    {"name": "timed_columns", "ROWS": 16, "cpu": True},
    {"name": "few_rows", "ROWS": 64, "COLS": 2097152},
    {"name": "prime", "ROWS": 37, "COLS": 4099, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[i] = sum_j x[i, j]"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return []
