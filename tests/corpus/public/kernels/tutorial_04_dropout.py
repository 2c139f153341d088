"""Triton's tutorial 04, the first part: the mask is given."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"tutorials": {"04-low-memory-dropout.py": ["dropout"]}}
PRECISION = "float32"
N = 4194304

CASES = [
    {"name": "ragged", "N": 3001, "cpu": True},
    {"name": "hidden", "N": 1030, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> Any:
        return torch.where(keep != 0, x / (1 - 0.5), 0.0)


def get_inputs() -> list[Any]:
    return [torch.randn(N), (torch.rand(N) > 0.5).to(torch.int32)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, x, keep):
        return dropout(x, keep, 0.5)
