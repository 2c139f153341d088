"""Residual addition and root-mean-square normalisation of the sum, which is returned too: twice in a Llama block."""

import torch
import torch.nn as nn

PRECISION = "float32"  # of the arithmetic; storage is DTYPE
DTYPE = "bfloat16"
ROWS = 16384
COLS = 4096  # Llama 3 8B

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 500, "cpu": True},
    {"name": "narrow_float32", "ROWS": 65, "COLS": 77, "DTYPE": "float32", "cpu": True},
    {"name": "timed_columns", "ROWS": 4, "cpu": True},
    {"name": "llama3_70b", "ROWS": 8192, "COLS": 8192},
    {"name": "deepseek_v3", "ROWS": 8192, "COLS": 7168},  # not a power of two
    {"name": "prime", "ROWS": 11, "COLS": 1031, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """h = x + residual; y = h / sqrt(mean(h^2) + eps) * weight; returns (y, h)"""

    def __init__(self, cols: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(cols).to(getattr(torch, DTYPE)))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x + residual
        return nn.functional.rms_norm(h, self.weight.shape, self.weight, self.eps), h


def get_inputs() -> list[torch.Tensor]:
    dtype = getattr(torch, DTYPE)
    return [torch.randn(ROWS, COLS).to(dtype), torch.randn(ROWS, COLS).to(dtype)]


def get_init_inputs() -> list[object]:
    return [COLS, 1e-5]
