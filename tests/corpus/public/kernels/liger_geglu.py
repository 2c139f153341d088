"""GELU (tanh) of one half times the other, in bfloat16."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/geglu.py": ["LigerGELUMulFunction"]}}
PRECISION = "bfloat16"
ROWS = 4096
COLS = 2048

CASES = [
    {"name": "ragged", "ROWS": 13, "COLS": 100, "cpu": True},
    {"name": "hidden", "ROWS": 6, "COLS": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return nn.functional.gelu(a, approximate="tanh") * b


def get_inputs() -> list[Any]:
    a = torch.randn(ROWS, COLS, dtype=torch.bfloat16)
    return [a, torch.randn(ROWS, COLS, dtype=torch.bfloat16)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, a, b):
        return LigerGELUMulFunction.apply(a, b)
