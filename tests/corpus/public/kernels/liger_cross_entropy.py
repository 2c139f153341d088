"""Cross entropy with label smoothing, no reduction."""

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
        return nn.functional.cross_entropy(logits, target, label_smoothing=0.1, reduction="none")


def get_inputs() -> list[Any]:
    return [torch.randn(T, V), torch.randint(0, V, (T,))]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, logits, target):
        return LigerCrossEntropyFunction.apply(logits, target, None, -100, 0.0, 0.1, "none")[0]
