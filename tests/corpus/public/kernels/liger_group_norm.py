"""Group normalisation of what the task draws: where the mean is small against the deviation."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/group_norm.py": ["LigerGroupNormFunction"]}}
PRECISION = "float32"
INPUTS = {"x": "own"}
B = 16
C = 128
G = 16
HW = 1024

CASES = [
    {"name": "ragged", "B": 2, "C": 6, "G": 3, "HW": 35, "cpu": True},
    {"name": "hidden", "B": 3, "C": 8, "G": 2, "HW": 21, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> Any:
        return nn.functional.group_norm(x, self.groups, self.weight, self.bias, 1e-5)


def get_inputs() -> list[Any]:
    return [torch.randn(B, C, HW)]


def get_init_inputs() -> list[Any]:
    return [C, G]


class ModelNew(Model):
    def forward(self, x):
        return LigerGroupNormFunction.apply(x, self.weight, self.bias, x.shape[1], self.groups, 1e-5)
