"""SwiGLU: the gate of a Llama feed-forward block, after its two projections."""

import torch
import torch.nn as nn

PRECISION = "float32"  # of the arithmetic; storage is DTYPE
DTYPE = "bfloat16"
ROWS = 8192
COLS = 11008

CASES = [
    {"name": "ragged", "ROWS": 129, "COLS": 1000, "cpu": True},
    {"name": "narrow_float32", "ROWS": 63, "COLS": 129, "DTYPE": "float32", "cpu": True},
    {"name": "timed_columns", "ROWS": 16, "cpu": True},
    {"name": "float32", "ROWS": 4096, "COLS": 8192, "DTYPE": "float32"},
    {"name": "prime", "ROWS": 37, "COLS": 1031, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = silu(gate) * up"""

    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(gate) * up


def get_inputs() -> list[torch.Tensor]:
    dtype = getattr(torch, DTYPE)
    return [torch.randn(ROWS, COLS).to(dtype), torch.randn(ROWS, COLS).to(dtype)]


def get_init_inputs() -> list[object]:
    return []
