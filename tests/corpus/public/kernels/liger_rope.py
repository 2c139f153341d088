"""Rotary embedding of queries and keys (HuggingFace layout)."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/rope.py": ["LigerRopeFunction"]}}
PRECISION = "float32"
B = 2
HQ = 32
HK = 8
S = 1024
D = 128

CASES = [
    {"name": "ragged", "B": 2, "HQ": 3, "HK": 3, "S": 5, "D": 8, "cpu": True},
    {"name": "hidden", "B": 1, "HQ": 2, "HK": 2, "S": 7, "D": 16, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        def turned(x: torch.Tensor) -> torch.Tensor:
            a, b = x.chunk(2, dim=-1)
            return torch.cat((-b, a), dim=-1)

        c, s = cos.unsqueeze(1), sin.unsqueeze(1)
        return q * c + turned(q) * s, k * c + turned(k) * s


def get_inputs() -> list[Any]:
    angle = torch.outer(torch.arange(S).float(), 1.0 / 10000 ** (torch.arange(0, D, 2) / D))
    angle = torch.cat((angle, angle), dim=-1)[None]
    return [torch.randn(B, HQ, S, D), torch.randn(B, HK, S, D), angle.cos(), angle.sin()]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, q, k, cos, sin):
        return LigerRopeFunction.apply(q, k, cos, sin)
