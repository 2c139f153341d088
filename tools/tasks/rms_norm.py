"""Root-mean-square normalisation over the last dimension, with weight (as in Llama), of bfloat16 activations."""

import torch
import torch.nn as nn

PRECISION = "float32"  # of the arithmetic; storage is DTYPE
DTYPE = "bfloat16"
ROWS = 16384
COLS = 4096

CASES = [
    {"name": "ragged", "ROWS": 129, "COLS": 1000, "cpu": True},
    {"name": "narrow_float32", "ROWS": 65, "COLS": 77, "DTYPE": "float32", "cpu": True},
    {"name": "timed_columns", "ROWS": 16, "cpu": True},
    {"name": "float32", "ROWS": 8192, "COLS": 8192, "DTYPE": "float32"},
    {"name": "prime", "ROWS": 31, "COLS": 2053, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * weight"""

    def __init__(self, cols: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(cols).to(getattr(torch, DTYPE)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return [COLS, 1e-6]
