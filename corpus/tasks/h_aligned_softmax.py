"""Softmax over rows that are a multiple of 16 bytes long, as tensor descriptors want them."""

import torch
from torch import nn

PRECISION = "float32"
ROWS = 4096
COLS = 256

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 100, "cpu": True},
    {"name": "hidden", "ROWS": 13, "COLS": 68, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = softmax(x)"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[object]:
    return []
