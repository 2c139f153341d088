"""Softmax over the elements that a mask lets through; the others are 0."""

import torch
from torch import nn

PRECISION = "float32"
ROWS = 4096
COLS = 2048

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 100, "cpu": True},
    {"name": "narrow", "ROWS": 9, "COLS": 47, "cpu": True},
    {"name": "hidden", "ROWS": 13, "COLS": 131, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = softmax(where(mask, x, -inf))"""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.masked_fill(~mask, float("-inf")), dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS), (torch.rand(ROWS, COLS) < 0.5).index_fill(1, torch.tensor([0]), True)]


def get_init_inputs() -> list[object]:
    return []
