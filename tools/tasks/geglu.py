"""GeGLU of packed projections: the gate of a Gemma feed-forward block, with the tanh form of GELU."""

import torch
import torch.nn as nn

PRECISION = "float32"  # of the arithmetic; storage is DTYPE
DTYPE = "bfloat16"
ROWS = 8192
COLS = 14336  # Gemma 2 9B

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 500, "cpu": True},
    {"name": "narrow_float32", "ROWS": 63, "COLS": 129, "DTYPE": "float32", "cpu": True},
    {"name": "timed_columns", "ROWS": 2, "cpu": True},
    {"name": "gemma_7b", "ROWS": 4096, "COLS": 24576},
    {"name": "prime", "ROWS": 11, "COLS": 1031, "held_out": True, "cpu": True},  # halves of odd rows lie askew
]


class Model(nn.Module):
    """y = gelu_tanh(gate) * up, where gate and up are the halves of each row"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return nn.functional.gelu(gate, approximate="tanh") * up


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, 2 * COLS).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return []
