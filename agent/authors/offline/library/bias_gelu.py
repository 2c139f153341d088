# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: one read and one write; the bias stays in the cache, the Gaussian is one polynomial and one power of two
# fits: bias_gelu(x, bias) = F.gelu(x + bias) where x: R C, bias: C
# search: ACCESSES = 1 2 4 8
# search: NUM_WARPS = 2 4 8 16
"""Bias and exact GELU. Rows are the grid's first dimension, so that a column needs no division to find its bias.

GELU is max(h, 0) - |h| Q(|h|), where Q is the Gaussian's upper tail, and log2 Q is so smooth that a polynomial of
degree 8 does for all h: the result is off by 5e-8 at most (torch's float32 by 1e-6 near h = -5, where 1 + erf cancels)
and by 1.3e-7 of itself for positive h. `erf` chooses between two polynomials and takes about twice the instructions,
which mattered: with it, 8192 x 8192 of float32 took 130.8 us on an H200 with two 16-byte accesses a thread and 8 warps,
134.5-143.2 with one and 4 to 32 warps, 127.4 in TorchInductor's kernel. The polynomial is not timed.
"""

import torch
import triton
import triton.language as tl

ACCESSES = 2  # of 16 bytes, a thread
NUM_WARPS = 8


@triton.jit
def gelu(h):
    a = tl.minimum(tl.abs(h), 64.0)  # the power is 0 there, and infinity times 0 would be NaN
    # log2 of the tail: least squares weighed with a Q(a), from 0 to 5; it keeps falling beyond
    p = a * -2.3349389266513754e-06 + 3.373769868630916e-05
    p = p * a - 0.00016129331197589636
    p = p * a - 0.00019170464656781405
    p = p * a + 0.00712686637416482
    p = p * a - 0.05253361538052559
    p = p * a - 0.4591982960700989
    p = p * a - 1.1511059999465942
    p = p * a - 1.0
    return tl.maximum(h, 0.0, propagate_nan=tl.PropagateNan.ALL) - a * tl.exp2(p)


@triton.jit
def bias_gelu_kernel(x_ptr, bias_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < cols
    x = tl.load(x_ptr + row * cols + column, mask=inside, other=0.0, eviction_policy="evict_last")
    bias = tl.load(bias_ptr + column, mask=inside, other=0.0, eviction_policy="evict_last")
    tl.store(y_ptr + row * cols + column, gelu((x + bias).to(tl.float32)), mask=inside)


def bias_gelu(x, bias):
    x = x.contiguous()
    rows, cols = x.shape
    y = torch.empty_like(x)
    block = NUM_WARPS * 32 * ACCESSES * 16 // x.element_size()
    bias_gelu_kernel[(rows, triton.cdiv(cols, block))](x, bias, y, cols, BLOCK=block, num_warps=NUM_WARPS)
    return y
