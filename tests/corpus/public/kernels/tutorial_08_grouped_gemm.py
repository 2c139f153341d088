"""Triton's tutorial 08: several products in one launch, by a table of addresses."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"tutorials": {"08-grouped-gemm.py": ["group_gemm_fn"]}}
PRECISION = "float16"
M = 1024

CASES = [
    {"name": "small", "M": 256, "cpu": True},
    {"name": "hidden", "M": 512, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, e: torch.Tensor, f: torch.Tensor
    ) -> Any:
        return [a @ d, b @ e, c @ f]


def get_inputs() -> list[Any]:
    sizes = [(M, M, M), (M // 2, M, M // 2), (M // 2, M // 2, M)]
    a = [torch.rand(m, k, dtype=torch.float16) for m, _, k in sizes]
    return [*a, *(torch.rand(k, n, dtype=torch.float16) for _, n, k in sizes)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, a, b, c, d, e, f):
        return group_gemm_fn([a, b, c], [d, e, f])
