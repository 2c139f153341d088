"""SiLU of one half times the other."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/swiglu.py": ["LigerSiLUMulFunction"]}}
PRECISION = "float32"
ROWS = 4096
COLS = 2048

CASES = [
    {"name": "ragged", "ROWS": 13, "COLS": 100, "cpu": True},
    {"name": "hidden", "ROWS": 6, "COLS": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return nn.functional.silu(a) * b


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, a, b):
        return LigerSiLUMulFunction.apply(a, b)
