"""Scaled attention scores, -inf above the diagonal."""

from typing import Any

import torch
from torch import nn

PRECISION = "float32"
ROWS = 2048

CASES = [
    {"name": "ragged", "ROWS": 50, "cpu": True},
    {"name": "hidden", "ROWS": 37, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[i, j] = x[i, j] / 8 where j <= i, else -inf"""

    def forward(self, x: torch.Tensor) -> Any:
        return (x * 0.125).masked_fill(torch.ones_like(x, dtype=torch.bool).triu(1), float("-inf"))


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, ROWS)]


def get_init_inputs() -> list[object]:
    return []
