"""Triton's tutorial 11: a programmatic dependent launch."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"tutorials": {"11-programmatic-dependent-launch.py": ["add"]}}
PRECISION = "float32"
N = 4194304

CASES = [
    {"name": "ragged", "N": 3001, "cpu": True},
    {"name": "hidden", "N": 1030, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + y


def get_inputs() -> list[Any]:
    return [torch.rand(N), torch.rand(N)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, x, y):
        return add(x, y)
