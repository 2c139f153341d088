"""Triton's tutorial 09: persistent."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"tutorials": {"09-persistent-matmul.py": ["matmul_persistent"]}}
PRECISION = "float16"
M = 1024
N = 1024
K = 1024

CASES = [
    {"name": "ragged", "M": 33, "N": 40, "K": 72, "cpu": True},
    {"name": "hidden", "M": 21, "N": 24, "K": 40, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        return a @ b


def get_inputs() -> list[Any]:
    return [torch.randn(M, K, dtype=torch.float16), torch.randn(K, N, dtype=torch.float16)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, a, b):
        return matmul_persistent(a, b)
