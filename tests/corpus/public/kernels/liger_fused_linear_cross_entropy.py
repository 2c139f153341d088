"""A projection and its cross entropy, in chunks that do not keep all logits."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/fused_linear_cross_entropy.py": ["LigerFusedLinearCrossEntropyFunction"]}}
PRECISION = "float32"
T = 2048
H = 1024
V = 16000

CASES = [
    {"name": "ragged", "T": 13, "H": 20, "V": 50, "cpu": True},
    {"name": "hidden", "T": 6, "H": 16, "V": 37, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def __init__(self, rows: int, cols: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, cols) / cols**0.5)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        return nn.functional.cross_entropy(x @ self.weight.T, target)


def get_inputs() -> list[Any]:
    return [torch.randn(T, H), torch.randint(0, V, (T,))]


def get_init_inputs() -> list[Any]:
    return [V, H]


class ModelNew(Model):
    def forward(self, x, target):
        return LigerFusedLinearCrossEntropyFunction.apply(x, self.weight, target)[0]
