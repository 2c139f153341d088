"""A multiple of a matrix, and a bias that may be missing."""

from typing import Any

import torch
from torch import nn

PRECISION = "float32"
ROWS = 4096
COLS = 512
FACTOR = 0.37
BIAS = 1

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 50, "cpu": True},
    {"name": "plain", "ROWS": 9, "COLS": 47, "FACTOR": -2.5, "BIAS": 0, "cpu": True},
    {"name": "hidden", "ROWS": 13, "COLS": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = factor * x (+ bias)"""

    def forward(self, x: torch.Tensor, factor: float, bias: torch.Tensor | None = None) -> Any:
        return x * factor if bias is None else x * factor + bias


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS), FACTOR, torch.randn(COLS) if BIAS else None]


def get_init_inputs() -> list[object]:
    return []
