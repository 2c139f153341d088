"""A result of many kinds: a list of integers and booleans, a 0-dim tensor, None and a number."""

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
    """([argmax, x > 0], sum of squares, None, columns)"""

    def forward(self, x: torch.Tensor) -> Any:
        return [x.argmax(dim=-1), x > 0], x.square().sum(), None, x.shape[1]


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[object]:
    return []
