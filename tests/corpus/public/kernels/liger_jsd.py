"""Jensen-Shannon divergence of two log-probabilities."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/jsd.py": ["LigerJSDFunction"]}}
PRECISION = "float32"
INPUTS = {"x": "own", "y": "own"}
T = 2048
V = 16000

CASES = [
    {"name": "ragged", "T": 13, "V": 100, "cpu": True},
    {"name": "hidden", "T": 6, "V": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        q, p = x.exp(), y.exp()
        m = (0.5 * (p + q)).log()
        return (0.5 * (p * (y - m)) + 0.5 * (q * (x - m))).sum() / x.shape[0]


def get_inputs() -> list[Any]:
    return [torch.randn(T, V).log_softmax(-1), torch.randn(T, V).log_softmax(-1)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, x, y):
        return LigerJSDFunction.apply(x, y)
