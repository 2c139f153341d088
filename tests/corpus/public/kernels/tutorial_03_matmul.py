"""Triton's tutorial 03: a product and leaky ReLU, tuned over 16 configurations."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"tutorials": {"03-matrix-multiplication.py": ["matmul"]}}
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
        return nn.functional.leaky_relu(a @ b, 0.01)


def get_inputs() -> list[Any]:
    return [torch.randn(M, K, dtype=torch.float16), torch.randn(K, N, dtype=torch.float16)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, a, b):
        return matmul(a, b, activation="leaky_relu")
