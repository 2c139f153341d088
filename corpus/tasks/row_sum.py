"""Sum over the last dimension."""

import torch
from torch import nn

PRECISION = "float32"
ROWS = 8192
COLS = 2048

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 100, "cpu": True},
    {"name": "narrow", "ROWS": 9, "COLS": 47, "cpu": True},
    {"name": "hidden", "ROWS": 13, "COLS": 131, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[i] = sum_j x[i, j]"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[object]:
    return []
