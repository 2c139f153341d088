"""Rectified linear unit of a tensor behind which three more elements may be read: whole vectors of four."""

from typing import Any

import torch
from torch import nn

PRECISION = "float32"
ROWS = 4096
COLS = 513
INPUTS = {"x": {"values": "any", "slack": 3}}

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 49, "cpu": True},
    {"name": "hidden", "ROWS": 13, "COLS": 69, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = max(x, 0)"""

    def forward(self, x: torch.Tensor) -> Any:
        return torch.relu(x)


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[object]:
    return []
