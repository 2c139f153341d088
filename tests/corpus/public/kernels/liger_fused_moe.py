"""Mixture of experts: routing, two grouped products with SwiGLU, and the sum of the experts."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/fused_moe.py": ["LigerFusedMoEFunction"]}}
PRECISION = "tf32_ok"
INPUTS = {"index": "own", "weight": "own"}
T = 1024
H = 512
F = 512
E = 8
K = 2

CASES = [
    {"name": "ragged", "T": 13, "H": 32, "F": 32, "E": 3, "K": 2, "cpu": True},
    {"name": "hidden", "T": 7, "H": 32, "F": 64, "E": 4, "K": 2, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def __init__(self, experts: int, wide: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(experts, 2 * inner, wide) / wide**0.5)
        self.down = nn.Parameter(torch.randn(experts, wide, inner) / inner**0.5)

    def forward(self, x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> Any:
        y = torch.zeros_like(x)
        for e in range(self.up.shape[0]):
            gate, up = (x @ self.up[e].T).chunk(2, dim=-1)
            share = (weight * (index == e)).sum(-1, keepdim=True)
            y = y + share * ((nn.functional.silu(gate) * up) @ self.down[e].T)
        return y


def get_inputs() -> list[Any]:
    index = torch.rand(T, E).topk(K).indices.to(torch.int32)
    return [torch.randn(T, H), index, torch.rand(T, K).softmax(-1)]


def get_init_inputs() -> list[Any]:
    return [E, H, F]


class ModelNew(Model):
    def forward(self, x, index, weight):
        return LigerFusedMoEFunction.apply(x, self.up, self.down, index, weight)
