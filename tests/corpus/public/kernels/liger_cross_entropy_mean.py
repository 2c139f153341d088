"""Mean cross entropy of logits with a cap, rows with a certain label left out."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/cross_entropy.py": ["LigerCrossEntropyFunction"]}}
PRECISION = "float32"
T = 2048
V = 16000

CASES = [
    {"name": "ragged", "T": 13, "V": 100, "cpu": True},
    {"name": "hidden", "T": 6, "V": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> Any:
        return nn.functional.cross_entropy(30.0 * torch.tanh(logits / 30.0), target, ignore_index=3)


def get_inputs() -> list[Any]:
    return [torch.randn(T, V), torch.randint(0, V, (T,))]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, logits, target):
        return LigerCrossEntropyFunction.apply(logits, target, None, 3, 0.0, 0.0, "mean", 30.0)[0]
