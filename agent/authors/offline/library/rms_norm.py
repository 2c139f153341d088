# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN204, N803
"""RMS normalisation over the last dimension, one program a row: the row is read once and stays in registers."""

import torch
import triton
import triton.language as tl
from torch import nn

NUM_WARPS = 8


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, y_ptr, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < cols
    x = tl.load(x_ptr + row * cols + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps)
    tl.store(y_ptr + row * cols + column, x * scale * weight, mask=inside)


class ModelNew(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * weight"""

    def __init__(self, cols, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(cols, dtype=torch.float32))  # holds a bfloat16 weight exactly, too

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        cols = x.shape[-1]
        block = triton.next_power_of_2(cols)
        grid = (x.numel() // cols,)
        rms_norm_kernel[grid](x, self.weight, y, cols, self.eps, BLOCK=block, num_warps=NUM_WARPS)
        return y
