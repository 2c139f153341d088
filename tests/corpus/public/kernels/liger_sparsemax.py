"""Projection of each row onto the simplex, by a sort in torch and a kernel."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/sparsemax.py": ["LigerSparsemaxFunction"]}}
PRECISION = "float32"
ROWS = 4096
COLS = 2048

CASES = [
    {"name": "ragged", "ROWS": 13, "COLS": 100, "cpu": True},
    {"name": "hidden", "ROWS": 6, "COLS": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        z, _ = x.sort(dim=-1, descending=True)
        sums = z.cumsum(-1)
        k = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
        support = ((1 + k * z) > sums).sum(-1, keepdim=True)
        return torch.clamp(x - (sums.gather(-1, support - 1) - 1) / support, min=0)


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, x):
        return LigerSparsemaxFunction.apply(x, -1)
