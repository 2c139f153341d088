"""Rows of a table by index."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/experimental/embedding.py": ["LigerEmbeddingFunction"]}}
PRECISION = "float32"
V = 16000
D = 1024
B = 8
T = 512

CASES = [
    {"name": "ragged", "V": 50, "D": 33, "B": 2, "T": 7, "cpu": True},
    {"name": "hidden", "V": 31, "D": 20, "B": 3, "T": 5, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def __init__(self, rows: int, cols: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, cols))

    def forward(self, index: torch.Tensor) -> Any:
        return nn.functional.embedding(index, self.weight)


def get_inputs() -> list[Any]:
    return [torch.randint(0, V, (B, T))]


def get_init_inputs() -> list[Any]:
    return [V, D]


class ModelNew(Model):
    def forward(self, index):
        return LigerEmbeddingFunction.apply(self.weight, index)
