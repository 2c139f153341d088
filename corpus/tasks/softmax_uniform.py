"""The distribution of KernelBench's level-1 problem 23: uniform inputs and very long rows, so that every right value is
tiny and an absolute tolerance of 1e-4 accepts zeros."""

import torch
from torch import nn

PRECISION = "float32"
ROWS = 128
COLS = 393216

CASES = [
    {"name": "ragged", "ROWS": 3, "COLS": 100003, "cpu": True},
    {"name": "narrow", "ROWS": 2, "COLS": 393216, "cpu": True},
    {"name": "hidden", "ROWS": 13, "COLS": 50021, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = softmax(x)"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(ROWS, COLS)]


def get_init_inputs() -> list[object]:
    return []
