"""Dynamic tanh instead of a normalisation; tuned over 18 configurations."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/dyt.py": ["LigerDyTFunction"]}}
PRECISION = "float32"
ROWS = 4096
COLS = 2048

CASES = [
    {"name": "ragged", "ROWS": 13, "COLS": 100, "cpu": True},
    {"name": "hidden", "ROWS": 6, "COLS": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def __init__(self, cols: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), 0.5))
        self.gamma = nn.Parameter(torch.ones(cols))
        self.beta = nn.Parameter(torch.zeros(cols))

    def forward(self, x: torch.Tensor) -> Any:
        return torch.tanh(self.alpha * x) * self.gamma + self.beta


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[Any]:
    return [COLS]


class ModelNew(Model):
    def forward(self, x):
        return LigerDyTFunction.apply(x, self.alpha, self.gamma, self.beta)
