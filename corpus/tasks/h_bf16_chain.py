"""A chain of elementwise operators on bfloat16, rounded after each of them."""

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
    """y = sigmoid(gate) * x + x * x / 8 - gate / 2"""

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> Any:
        return torch.sigmoid(gate) * x + x * x * 0.125 - gate * 0.5


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS).bfloat16(), torch.randn(ROWS, COLS).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
