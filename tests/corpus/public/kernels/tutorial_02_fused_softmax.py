"""Triton's tutorial 02: compiled by warmup, launched by occupancy."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"tutorials": {"02-fused-softmax.py": ["softmax"]}}
PRECISION = "float32"
ROWS = 4096
COLS = 2048

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 100, "cpu": True},
    {"name": "hidden", "ROWS": 13, "COLS": 131, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.softmax(x, dim=1)


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, x):
        return softmax(x)
