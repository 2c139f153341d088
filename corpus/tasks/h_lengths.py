"""Sums of rows that end early."""

from typing import Any

import torch
from torch import nn

PRECISION = "float32"
ROWS = 4096
COLS = 512

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 50, "cpu": True},
    {"name": "hidden", "ROWS": 13, "COLS": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[i] = sum_{j < lengths[i]} x[i, j]"""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        return x.masked_fill(torch.arange(x.shape[1], device=x.device) >= lengths[:, None], 0.0).sum(dim=-1)


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS), torch.randint(0, COLS + 1, (ROWS,))]


def get_init_inputs() -> list[object]:
    return []
