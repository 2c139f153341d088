"""Softmax of rows that lie apart: what is between them may be read, and means nothing."""

from typing import Any

import torch
from torch import nn

PRECISION = "float32"
ROWS = 4096
COLS = 1000
INPUTS = {"x": {"values": "any", "pitch": 64}}

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 50, "cpu": True},
    {"name": "hidden", "ROWS": 13, "COLS": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = softmax(x)"""

    def forward(self, x: torch.Tensor) -> Any:
        return torch.softmax(x, dim=-1)


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[object]:
    return []
