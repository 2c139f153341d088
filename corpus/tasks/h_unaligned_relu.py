"""Rectified linear unit of a tensor that may begin anywhere, as a slice of another one does."""

from typing import Any

import torch
from torch import nn

PRECISION = "float32"
ROWS = 4096
COLS = 512
INPUTS = {"x": {"values": "any", "alignment": 4}}

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 50, "cpu": True},
    {"name": "hidden", "ROWS": 13, "COLS": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = max(x, 0)"""

    def forward(self, x: torch.Tensor) -> Any:
        return torch.relu(x)


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[object]:
    return []
