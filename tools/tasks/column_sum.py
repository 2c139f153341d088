"""Sum over the first dimension of a matrix: the gradient of a bias. Rows are far apart, so no program has a column."""

import torch
import torch.nn as nn

PRECISION = "float32"  # of the arithmetic; storage is DTYPE
DTYPE = "float32"
ROWS = 32768  # tokens
COLS = 4096

CASES = [
    {"name": "ragged", "ROWS": 500, "COLS": 65, "cpu": True},
    {"name": "narrow", "ROWS": 129, "COLS": 63, "cpu": True},
    {"name": "timed_columns", "ROWS": 5, "cpu": True},
    {"name": "qwen2_7b", "ROWS": 65536, "COLS": 3584, "DTYPE": "bfloat16"},
    {"name": "few_columns", "ROWS": 1048576, "COLS": 64},
    {"name": "prime", "ROWS": 1031, "COLS": 37, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[j] = sum_i x[i, j]"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=0)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return []
