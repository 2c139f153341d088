"""The built-in task with two small cases: for tests of what happens around verdicts, which take a tenth of the time."""

import torch
import torch.nn as nn

PRECISION = "float32"
ROWS = 8192
COLS = 8192

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
