"""A dozen operators in a row: normalise, gate, clamp, gate again, add, leak."""

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
    """leaky(silu(clamp(1.5 silu(norm(x)) + 0.25)) + r)"""

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> Any:
        g = nn.functional.silu(nn.functional.layer_norm(x, x.shape[1:])) * 1.5 + 0.25
        g = g.clamp(-4.0, 4.0)
        return nn.functional.leaky_relu(nn.functional.silu(g) + r, 0.01)


def get_inputs() -> list[Any]:
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[object]:
    return []
