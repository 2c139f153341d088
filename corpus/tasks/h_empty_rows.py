"""Softmax under a mask that leaves some rows without any element: those are NaN."""

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
    """y = softmax(where(mask, x, -inf))"""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        return torch.softmax(x.masked_fill(~mask, float("-inf")), dim=-1)


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS), (torch.rand(ROWS, COLS) < 0.5) & (torch.arange(ROWS) % 3 > 0)[:, None]]


def get_init_inputs() -> list[object]:
    return []
