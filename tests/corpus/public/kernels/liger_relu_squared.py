"""The square of ReLU."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/relu_squared.py": ["LigerReLUSquaredFunction"]}}
PRECISION = "float32"
ROWS = 4096
COLS = 2048

CASES = [
    {"name": "ragged", "ROWS": 13, "COLS": 100, "cpu": True},
    {"name": "hidden", "ROWS": 6, "COLS": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return nn.functional.relu(x) ** 2


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, x):
        return LigerReLUSquaredFunction.apply(x)
