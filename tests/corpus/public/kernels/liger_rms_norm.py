"""RMSNorm in float32, the weight stored as an offset from one (Gemma)."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/rms_norm.py": ["LigerRMSNormFunction"]}}
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
        self.weight = nn.Parameter(torch.zeros(cols))

    def forward(self, x: torch.Tensor) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[Any]:
    return [COLS]


class ModelNew(Model):
    def forward(self, x):
        return LigerRMSNormFunction.apply(x, self.weight, 1e-6, 1.0, "gemma", False, None)
