"""Whole numbers times weights of two bits, four of them packed in a byte."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/experimental/mm_int8int2.py": ["matmul"]}}
PRECISION = "float32"
M = 512
K = 1024
N = 512

CASES = [
    {"name": "ragged", "M": 20, "K": 256, "N": 24, "cpu": True},
    {"name": "hidden", "M": 13, "K": 256, "N": 17, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        parts = [((b >> (2 * i)) & 3).long() - 1 for i in range(4)]
        return (a.double() @ torch.cat(parts).double()).to(torch.int32)


def get_inputs() -> list[Any]:
    return [torch.randint(-128, 128, (M, K), dtype=torch.int8), torch.randint(0, 256, (K // 4, N), dtype=torch.uint8)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, a, b):
        return matmul(a, b)
