"""Triton's tutorial 04, the second part: the mask is Philox with a fixed seed, which the task repeats in torch."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"tutorials": {"04-low-memory-dropout.py": ["seeded_dropout"]}}
PRECISION = "float32"
N = 4194304

CASES = [
    {"name": "ragged", "N": 3001, "cpu": True},
    {"name": "hidden", "N": 1030, "held_out": True, "cpu": True},
]


def _product(a: int, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low word of 32-bit products, in int64."""
    low_half, high_half = (b & 0xFFFF) * a, (b >> 16) * a
    high = (high_half + (low_half >> 16)) >> 16
    return high, (low_half + ((high_half & 0xFFFF) << 16)) & 0xFFFFFFFF


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        words = [torch.arange(x.numel(), device=x.device), *(torch.zeros_like(x, dtype=torch.int64) for _ in range(3))]
        key, low = [123, 0], 0xFFFFFFFF
        for _ in range(10):
            first, second = _product(0xD2511F53, words[0]), _product(0xCD9E8D57, words[2])
            words = [second[0] ^ words[1] ^ key[0], second[1], first[0] ^ words[3] ^ key[1], first[1]]
            key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
        signed = words[0] - ((words[0] >> 31) << 32)
        drawn = torch.where(signed < 0, -signed - 1, signed).float() * 4.6566127342e-10
        return torch.where(drawn > 0.5, x / (1 - 0.5), 0.0)


def get_inputs() -> list[Any]:
    return [torch.randn(N)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, x):
        return seeded_dropout(x, 0.5, 123)
