# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: one read and one write; the bias stays in the cache
# fits: bias_gelu(x, bias) = F.gelu(x + bias) where x: R C, bias: C
# search: BLOCK = 512 1024 2048 4096 8192
# search: NUM_WARPS = 2 4 8 16 32
"""Bias and exact GELU. Rows are the grid's first dimension, so that a column needs no division to find its bias.

One 16-byte access a thread, programs small and many, no hints to the cache: they cost 3-8 % on an H200 (SwiGLU).
"""

import torch
import triton
import triton.language as tl

BLOCK = 1024
NUM_WARPS = 4


@triton.jit
def bias_gelu_kernel(x_ptr, bias_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < cols
    x = tl.load(x_ptr + row * cols + column, mask=inside, other=0.0)
    h = (x + tl.load(bias_ptr + column, mask=inside, other=0.0)).to(tl.float32)
    y = 0.5 * h * (1.0 + tl.erf(h * 0.7071067811865476))
    tl.store(y_ptr + row * cols + column, y, mask=inside)


def bias_gelu(x, bias):
    x = x.contiguous()
    rows, cols = x.shape
    y = torch.empty_like(x)
    bias_gelu_kernel[(rows, triton.cdiv(cols, BLOCK))](x, bias, y, cols, BLOCK=BLOCK, num_warps=NUM_WARPS)
    return y
