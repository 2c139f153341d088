"""Causal softmax of scores, then a convolution over them, masked again."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/multi_token_attention.py": ["LigerMultiTokenAttentionFunction"]}}
PRECISION = "float32"
B = 2
C = 8
S = 256

CASES = [
    {"name": "ragged", "B": 2, "C": 2, "S": 20, "cpu": True},
    {"name": "hidden", "B": 1, "C": 3, "S": 13, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels, 3, 3) / (9 * channels) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, scores: torch.Tensor) -> Any:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        shares = scores.masked_fill(later, -1e9).softmax(-1)
        return nn.functional.conv2d(shares, self.weight, self.bias, padding=1).masked_fill(later, 0.0)


def get_inputs() -> list[Any]:
    return [torch.randn(B, C, S, S)]


def get_init_inputs() -> list[Any]:
    return [C]


class ModelNew(Model):
    def forward(self, scores):
        return LigerMultiTokenAttentionFunction.apply(scores, self.weight, self.bias, 1, 1)
