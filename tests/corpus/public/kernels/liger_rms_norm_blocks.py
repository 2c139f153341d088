"""RMSNorm with sixteen rows a program, which Liger takes for many short rows."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/rms_norm.py": ["LigerRMSNormFunction"]}}
PRECISION = "float32"
ROWS = 65536
COLS = 128

CASES = [
    {"name": "ragged", "ROWS": 32771, "COLS": 5, "cpu": True},
    {"name": "hidden", "ROWS": 32770, "COLS": 3, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def __init__(self, cols: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))

    def forward(self, x: torch.Tensor) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[Any]:
    return [COLS]


class ModelNew(Model):
    def forward(self, x):
        return LigerRMSNormFunction.apply(x, self.weight, 1e-6, 0.0, "llama", False, None)
