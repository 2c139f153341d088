"""Triton's tutorial 05, forward."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"tutorials": {"05-layer-norm.py": ["layer_norm"]}}
PRECISION = "float32"
ROWS = 4096
COLS = 2048

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 100, "cpu": True},
    {"name": "hidden", "ROWS": 13, "COLS": 131, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def __init__(self, cols: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x: torch.Tensor) -> Any:
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[Any]:
    return [COLS]


class ModelNew(Model):
    def forward(self, x):
        return layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)
