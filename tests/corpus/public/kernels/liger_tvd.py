"""Total variation distance of two distributions."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/tvd.py": ["LigerTVDLossFunction"]}}
PRECISION = "float32"
T = 2048
V = 16000

CASES = [
    {"name": "ragged", "T": 13, "V": 100, "cpu": True},
    {"name": "hidden", "T": 6, "V": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, p: torch.Tensor, q: torch.Tensor) -> Any:
        return 0.5 * (p - q).abs().sum() / p.shape[0]


def get_inputs() -> list[Any]:
    return [torch.randn(T, V).softmax(-1), torch.randn(T, V).softmax(-1)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, p, q):
        return LigerTVDLossFunction.apply(p, q)
