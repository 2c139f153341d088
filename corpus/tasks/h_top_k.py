"""The five largest elements of each row and their places."""

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
    """values and places"""

    def forward(self, x: torch.Tensor) -> Any:
        return tuple(x.topk(5, dim=-1))


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[object]:
    return []
