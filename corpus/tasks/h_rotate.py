"""Each row rotated by an amount of its own."""

from typing import Any

import torch
from torch import nn

PRECISION = "float32"
ROWS = 4096
COLS = 512

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 50, "cpu": True},
    {"name": "hidden", "ROWS": 13, "COLS": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[i, j] = x[i, (j + by[i]) % cols]"""

    def forward(self, x: torch.Tensor, by: torch.Tensor) -> Any:
        return x.gather(1, (torch.arange(x.shape[1], device=x.device) + by[:, None]) % x.shape[1])


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS), torch.randint(0, COLS, (ROWS,))]


def get_init_inputs() -> list[object]:
    return []
