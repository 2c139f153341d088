# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: one read and one write; the bias stays in the cache
# fits: bias_gelu(x, bias) = F.gelu(x + bias) where x: R C, bias: C
# search: ACCESSES = 1 2 4
# search: NUM_WARPS = 4 8 16 32
# search: LEAVES_LAST = 0 1
"""Bias and exact GELU. Rows are the grid's first dimension, so that a column needs no division to find its bias.

One 16-byte access a thread, x and bias told to leave the L2 last: what was best for SwiGLU, and for softmax and RMS
normalisation on an H200; not timed here.
"""

import torch
import triton
import triton.language as tl

ACCESSES = 1  # of 16 bytes, a thread
NUM_WARPS = 16
LEAVES_LAST = 1


@triton.jit
def bias_gelu_kernel(x_ptr, bias_ptr, y_ptr, cols, BLOCK: tl.constexpr, POLICY: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < cols
    x = tl.load(x_ptr + row * cols + column, mask=inside, other=0.0, eviction_policy=POLICY)
    bias = tl.load(bias_ptr + column, mask=inside, other=0.0, eviction_policy="evict_last")
    h = (x + bias).to(tl.float32)
    y = 0.5 * h * (1.0 + tl.erf(h * 0.7071067811865476))
    tl.store(y_ptr + row * cols + column, y, mask=inside)


def bias_gelu(x, bias):
    x = x.contiguous()
    rows, cols = x.shape
    y = torch.empty_like(x)
    block = NUM_WARPS * 32 * ACCESSES * 16 // x.element_size()
    bias_gelu_kernel[(rows, triton.cdiv(cols, block))](
        x, bias, y, cols, BLOCK=block, POLICY="evict_last" if LEAVES_LAST else "", num_warps=NUM_WARPS
    )
    return y
