"""Attention over the residuals of earlier blocks."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/attn_res.py": ["LigerAttnResFunction"]}}
PRECISION = "float32"
N = 8
B = 4
T = 512
D = 1024

CASES = [
    {"name": "ragged", "N": 3, "B": 2, "T": 5, "D": 50, "cpu": True},
    {"name": "hidden", "N": 5, "B": 1, "T": 7, "D": 33, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def __init__(self, cols: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(cols) / cols**0.5)
        self.norm = nn.Parameter(torch.ones(cols))

    def forward(self, v: torch.Tensor) -> Any:
        keys = v * torch.rsqrt((v * v).mean(-1, keepdim=True) + 1e-6) * self.norm
        share = (keys * self.query).sum(-1).softmax(0)
        return (share.unsqueeze(-1) * v).sum(0)


def get_inputs() -> list[Any]:
    return [torch.randn(N, B, T, D)]


def get_init_inputs() -> list[Any]:
    return [D]


class ModelNew(Model):
    def forward(self, v):
        return LigerAttnResFunction.apply(v, self.query, self.norm, 1e-6)
