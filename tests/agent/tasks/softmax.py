"""The built-in task with small cases, also the timed one: for quick tests of what happens around verdicts."""

import torch
import torch.nn as nn

PRECISION = "float32"
ROWS = 16
COLS = 1024

CASES = [
    {"name": "narrow", "ROWS": 33, "COLS": 129, "cpu": True},
    {"name": "prime", "ROWS": 7, "COLS": 203, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[i, j] = exp(x[i, j]) / sum_k exp(x[i, k])"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[object]:
    return []
