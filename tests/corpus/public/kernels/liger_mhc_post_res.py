"""Manifold hyper-connections: streams mixed, and the block added."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/mhc.py": ["LigerMHCPostResFunction"]}}
PRECISION = "float32"
N = 4096
HC = 4
C = 1024

CASES = [
    {"name": "ragged", "N": 33, "HC": 4, "C": 50, "cpu": True},
    {"name": "hidden", "N": 13, "HC": 4, "C": 130, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, x: torch.Tensor, f: torch.Tensor, h_post: torch.Tensor, h_res: torch.Tensor) -> Any:
        return h_res @ x + h_post.unsqueeze(-1) * f.unsqueeze(-2)


def get_inputs() -> list[Any]:
    return [torch.randn(N, HC, C), torch.randn(N, C), torch.randn(N, HC), torch.randn(N, HC, HC)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, x, f, h_post, h_res):
        return LigerMHCPostResFunction.apply(x, f, h_post, h_res)
