"""RMSNorm in bfloat16, normalised rows rounded before the weight (Llama)."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/rms_norm.py": ["LigerRMSNormFunction"]}}
PRECISION = "bfloat16"
ROWS = 4096
COLS = 2048

CASES = [
    {"name": "ragged", "ROWS": 13, "COLS": 100, "cpu": True},
    {"name": "hidden", "ROWS": 6, "COLS": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def __init__(self, cols: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> Any:
        f = x.float()
        return self.weight * (f * torch.rsqrt((f * f).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS, dtype=torch.bfloat16)]


def get_init_inputs() -> list[Any]:
    return [COLS]


class ModelNew(Model):
    def forward(self, x):
        return LigerRMSNormFunction.apply(x, self.weight, 1e-6, 0.0, "llama", False, None)
