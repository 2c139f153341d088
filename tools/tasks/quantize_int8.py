"""Symmetric quantisation of each row (token) to int8 with a float32 scale, as W8A8 inference does before a matmul."""

import torch
import torch.nn as nn

PRECISION = "float32"  # of scale and quotient; where a quotient is within rounding of a half, both neighbours are right
DTYPE = "bfloat16"
ROWS = 16384
COLS = 8192  # Llama 3 70B

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 1000, "cpu": True},
    {"name": "narrow_float32", "ROWS": 65, "COLS": 77, "DTYPE": "float32", "cpu": True},
    {"name": "timed_columns", "ROWS": 3, "cpu": True},
    {"name": "deepseek_v3", "ROWS": 16384, "COLS": 7168},
    {"name": "prime", "ROWS": 11, "COLS": 2053, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """scale[i] = max(max_j |x[i, j]|, 1e-8) / 127; q[i, j] = round(x[i, j] / scale[i]); returns (q, scale)"""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = x.float()
        scale = wide.abs().amax(dim=-1, keepdim=True).clamp_min(1e-8) / 127
        return torch.round(wide / scale).to(torch.int8), scale


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return []
