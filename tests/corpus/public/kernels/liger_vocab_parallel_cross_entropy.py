"""Cross entropy of Megatron layout, on a single rank."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/vocab_parallel_cross_entropy.py": ["LigerVocabParallelCEFunction"]}}
PRECISION = "float32"
S = 512
B = 4
V = 16000

CASES = [
    {"name": "ragged", "S": 5, "B": 2, "V": 100, "cpu": True},
    {"name": "hidden", "S": 3, "B": 3, "V": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> Any:
        return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(target.shape)


def get_inputs() -> list[Any]:
    return [torch.randn(S, B, V), torch.randint(0, V, (S, B))]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, logits, target):
        return LigerVocabParallelCEFunction.apply(logits, target, None, -100, 0.0, "pytorch", "global")
