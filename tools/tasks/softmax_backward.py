"""Backward of softmax over the last dimension, from its output and the gradient of that."""

import torch
import torch.nn as nn

PRECISION = "float32"  # of the arithmetic; storage is DTYPE
DTYPE = "float32"
ROWS = 8192
COLS = 8192

INPUTS = {"gradient": "any", "y": "own"}  # rows of y are probabilities

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 1000, "cpu": True},
    {"name": "narrow", "ROWS": 63, "COLS": 129, "cpu": True},
    {"name": "timed_columns", "ROWS": 3, "cpu": True},
    {"name": "attention", "ROWS": 65536, "COLS": 2048, "DTYPE": "bfloat16"},  # 32 heads of 2,048 tokens
    {"name": "prime", "ROWS": 11, "COLS": 2053, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """dx[i, j] = y[i, j] * (dy[i, j] - sum_k y[i, k] dy[i, k])"""

    def forward(self, gradient: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        product = gradient.float() * y.float()
        return (product - y.float() * product.sum(dim=-1, keepdim=True)).to(y.dtype)


def get_inputs() -> list[torch.Tensor]:
    dtype = getattr(torch, DTYPE)
    return [torch.randn(ROWS, COLS).to(dtype), torch.softmax(torch.randn(ROWS, COLS), dim=-1).to(dtype)]


def get_init_inputs() -> list[object]:
    return []
