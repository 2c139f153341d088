"""Triton's tutorial 06, forward, causal, of any values, also of scores beyond its mask's -1e6."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"tutorials": {"06-fused-attention.py": ["attention"]}}
PRECISION = "float16"
B = 4
H = 16
S = 1024
D = 64

CASES = [
    {"name": "small", "B": 1, "H": 2, "S": 128, "cpu": True},
    {"name": "hidden", "B": 2, "H": 1, "S": 256, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.125)


def get_inputs() -> list[Any]:
    return [torch.randn(B, H, S, D, dtype=torch.float16) for _ in range(3)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        return attention(q, k, v, True, 0.125, False)
