"""Residual addition and layer normalisation of the sum, which is returned too: twice in a ViT block."""

import torch
import torch.nn as nn

PRECISION = "float32"  # of the arithmetic; storage is DTYPE
DTYPE = "bfloat16"
ROWS = 65792  # 256 images of 257 tokens
COLS = 1280  # ViT-H

# where h were constant in a row, whether its variance is zero would hang on how often h is rounded on the way
INPUTS = {"x": "any", "residual": "own"}

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 500, "cpu": True},
    {"name": "narrow_float32", "ROWS": 65, "COLS": 77, "DTYPE": "float32", "cpu": True},
    {"name": "timed_columns", "ROWS": 9, "cpu": True},
    {"name": "vit_l_float32", "ROWS": 25216, "COLS": 1024, "DTYPE": "float32"},  # 128 images of 197 tokens
    {"name": "prime", "ROWS": 11, "COLS": 1031, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """h = x + residual; y = (h - mean(h)) / sqrt(var(h) + eps) * weight + bias; returns (y, h)"""

    def __init__(self, cols: int, eps: float) -> None:
        super().__init__()
        dtype = getattr(torch, DTYPE)
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(cols).to(dtype))
        self.bias = nn.Parameter(torch.randn(cols).to(dtype))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x + residual
        return nn.functional.layer_norm(h, self.weight.shape, self.weight, self.bias, self.eps), h


def get_inputs() -> list[torch.Tensor]:
    dtype = getattr(torch, DTYPE)
    return [torch.randn(ROWS, COLS).to(dtype), torch.randn(ROWS, COLS).to(dtype)]


def get_init_inputs() -> list[object]:
    return [COLS, 1e-6]
