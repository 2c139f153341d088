"""Transposition of a matrix into new memory: no arithmetic, but reads and writes cannot both be along rows."""

import torch
import torch.nn as nn

PRECISION = "bfloat16"  # values are only copied
DTYPE = "bfloat16"
ROWS = 8192
COLS = 14336  # the down projection of Llama 3 8B, at twice its width

CASES = [
    {"name": "ragged", "ROWS": 129, "COLS": 250, "cpu": True},
    {"name": "narrow_float32", "ROWS": 63, "COLS": 129, "DTYPE": "float32", "cpu": True},
    {"name": "tall", "ROWS": 1000, "COLS": 8, "cpu": True},
    {"name": "float32", "ROWS": 8192, "COLS": 8192, "DTYPE": "float32"},  # power-of-two strides: partition camping
    {"name": "prime", "ROWS": 509, "COLS": 61, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[j, i] = x[i, j]"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous()


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return []
