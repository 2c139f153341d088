"""Three normalised powers, weighted (PolyNorm)."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/poly_norm.py": ["LigerPolyNormFunction"]}}
PRECISION = "float32"
ROWS = 4096
COLS = 2048

CASES = [
    {"name": "ragged", "ROWS": 13, "COLS": 100, "cpu": True},
    {"name": "hidden", "ROWS": 6, "COLS": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3) / 3)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> Any:
        def normed(u: torch.Tensor) -> torch.Tensor:
            return u * torch.rsqrt((u * u).mean(-1, keepdim=True) + 1e-6)

        w = self.weight
        return w[0] * normed(x**3) + w[1] * normed(x**2) + w[2] * normed(x) + self.bias


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(Model):
    def forward(self, x):
        return LigerPolyNormFunction.apply(x, self.weight, self.bias, 1e-6, False)
