"""Residual sum and its RMSNorm, both returned."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/fused_add_rms_norm.py": ["LigerFusedAddRMSNormFunction"]}}
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
        self.weight = nn.Parameter(torch.ones(cols))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> Any:
        s = x + residual
        return s * torch.rsqrt((s * s).mean(-1, keepdim=True) + 1e-6) * self.weight, s


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[Any]:
    return [COLS]


class ModelNew(Model):
    def forward(self, x, residual):
        return LigerFusedAddRMSNormFunction.apply(x, residual, self.weight, 1e-6, 0.0, "llama", False)
