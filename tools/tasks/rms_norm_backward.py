"""Backward of root-mean-square normalisation: the gradients of its input (along rows) and weight (down columns)."""

import torch
import torch.nn as nn

PRECISION = "float32"  # of the arithmetic; storage is DTYPE
DTYPE = "bfloat16"
ROWS = 16384
COLS = 4096  # Llama 3 8B

CASES = [
    {"name": "ragged", "ROWS": 65, "COLS": 300, "cpu": True},
    {"name": "narrow_float32", "ROWS": 65, "COLS": 77, "DTYPE": "float32", "cpu": True},
    {"name": "timed_columns", "ROWS": 5, "cpu": True},
    {"name": "llama3_70b", "ROWS": 8192, "COLS": 8192},
    {"name": "prime", "ROWS": 31, "COLS": 503, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """n = x / r, r = sqrt(mean(x^2) + eps); dx = (w dy - n mean(w dy n)) / r; dw = sum over rows of dy n"""

    def __init__(self, cols: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(cols).to(getattr(torch, DTYPE)))

    def forward(self, gradient: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dy, wide = gradient.float(), x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        normed, weighted = wide * scale, dy * self.weight.float()
        dx = (weighted - normed * (weighted * normed).mean(dim=-1, keepdim=True)) * scale
        return dx.to(x.dtype), (dy * normed).sum(dim=0).to(x.dtype)


def get_inputs() -> list[torch.Tensor]:
    dtype = getattr(torch, DTYPE)
    return [torch.randn(ROWS, COLS).to(dtype), torch.randn(ROWS, COLS).to(dtype)]


def get_init_inputs() -> list[object]:
    return [COLS, 1e-5]
