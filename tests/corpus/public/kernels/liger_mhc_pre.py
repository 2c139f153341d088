"""Manifold hyper-connections: streams gathered by weights."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/mhc.py": ["LigerMHCPreFunction"]}}
PRECISION = "float32"
N = 4096
HC = 4
C = 1024

CASES = [
    {"name": "ragged", "N": 33, "HC": 4, "C": 50, "cpu": True},
    {"name": "hidden", "N": 13, "HC": 4, "C": 130, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        return (x * h.unsqueeze(-1)).sum(-2)


def get_inputs() -> list[Any]:
    return [torch.randn(N, HC, C), torch.randn(N, HC)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, x, h):
        return LigerMHCPreFunction.apply(x, h)
