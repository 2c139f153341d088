"""RMSNorm, then scale and shift of each sequence (diffusion transformers)."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/modulated_rms_norm.py": ["LigerModulatedRMSNormFunction"]}}
PRECISION = "float32"
B = 8
T = 512
COLS = 2048

CASES = [
    {"name": "ragged", "B": 2, "T": 5, "COLS": 100, "cpu": True},
    {"name": "hidden", "B": 3, "T": 4, "COLS": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def __init__(self, cols: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))

    def forward(self, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> Any:
        y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight
        return y * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def get_inputs() -> list[Any]:
    return [torch.randn(B, T, COLS), torch.randn(B, COLS), torch.randn(B, COLS)]


def get_init_inputs() -> list[Any]:
    return [COLS]


class ModelNew(Model):
    def forward(self, x, scale, shift):
        return LigerModulatedRMSNormFunction.apply(x, self.weight, scale, shift, 1e-6, 0.0, "llama", False)
