"""Rotary embedding by complex numbers (Llama 4), in place on copies."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/llama4_rope.py": ["LigerLlama4RopeFunction"]}}
PRECISION = "float32"
B = 2
S = 1024
HQ = 32
HK = 8
D = 128

CASES = [
    {"name": "ragged", "B": 2, "HQ": 3, "HK": 1, "S": 5, "D": 8, "cpu": True},
    {"name": "hidden", "B": 1, "HQ": 2, "HK": 2, "S": 7, "D": 16, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor) -> Any:
        turn = torch.complex(freqs[..., 0], freqs[..., 1])[None, :, None, :]

        def turned(x: torch.Tensor) -> torch.Tensor:
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * turn).flatten(-2)

        return turned(q), turned(k)


def get_inputs() -> list[Any]:
    angle = torch.outer(torch.arange(S).float(), 1.0 / 500000 ** (torch.arange(0, D, 2) / D))
    return [torch.randn(B, S, HQ, D), torch.randn(B, S, HK, D), torch.stack([angle.cos(), angle.sin()], -1)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, q, k, freqs):
        return LigerLlama4RopeFunction.apply(q.clone(), k.clone(), freqs)
