"""Attention within a window of seven."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/fused_neighborhood_attention.py": ["LigerFusedNeighborhoodAttentionFunction"]}}
INPUTS = {"q": "own", "k": "own"}  # larger scores make softmax an argmax, which TF32 flips in one row of a thousand
PRECISION = "tf32_ok"
B = 4
H = 8
S = 512
D = 64

CASES = [
    {"name": "ragged", "B": 2, "H": 1, "S": 32, "D": 16, "cpu": True},
    {"name": "hidden", "B": 1, "H": 2, "S": 24, "D": 16, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        i = torch.arange(q.shape[-2], device=q.device)
        near = (i[:, None] - i[None, :]).abs() <= 3
        scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
        return scores.masked_fill(~near, float("-inf")).softmax(-1) @ v


def get_inputs() -> list[Any]:
    return [torch.randn(B, H, S, D), torch.randn(B, H, S, D), torch.randn(B, H, S, D)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        return LigerFusedNeighborhoodAttentionFunction.apply(q, k, v, 7, 1, None)
