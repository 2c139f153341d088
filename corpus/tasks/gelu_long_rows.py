"""GELU by the error function, element by element, over long rows."""

import torch
from torch import nn

PRECISION = "float32"
ROWS = 4096
COLS = 4096

CASES = [
    {"name": "ragged", "ROWS": 5, "COLS": 4096, "cpu": True},
    {"name": "narrow", "ROWS": 3, "COLS": 4100, "cpu": True},
    {"name": "hidden", "ROWS": 2, "COLS": 8191, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = x * Phi(x)"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[object]:
    return []
