"""Triton's tutorial 07: asin of libdevice."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"tutorials": {"07-extern-functions.py": ["asin_kernel"]}}
PRECISION = "float32"
N = 4194304

CASES = [
    {"name": "ragged", "N": 3001, "cpu": True},
    {"name": "hidden", "N": 1030, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.asin(x)


def get_inputs() -> list[Any]:
    return [torch.rand(N)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        asin_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK_SIZE"]),)](x, y, x.numel(), BLOCK_SIZE=1024)
        return y
