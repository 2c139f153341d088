"""Kullback-Leibler divergence, no reduction."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/kl_div.py": ["LigerKLDivLossFunction"]}}
PRECISION = "float32"
T = 2048
V = 16000

CASES = [
    {"name": "ragged", "T": 13, "V": 100, "cpu": True},
    {"name": "hidden", "T": 6, "V": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return nn.functional.kl_div(x, y, reduction="none")


def get_inputs() -> list[Any]:
    return [torch.randn(T, V).log_softmax(-1), torch.randn(T, V).softmax(-1)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, x, y):
        return LigerKLDivLossFunction.apply(x, y, "none", False, 1e-10)
