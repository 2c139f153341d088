# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# order: 1
# says: single pass: a whole row in registers, read once
# fits: softmax(x) = torch.softmax(x, -1) where x: ... C<65537
# fits: softmax(x) = torch.softmax(x, 1) where x: R C<65537
# search: NUM_WARPS = 1 2 4 8 16 32
"""Softmax over the last dimension, one program a row: the row is read once and stays in registers.

Memory traffic is the least possible, one read and one write. Rows must fit: 64 K columns are 64 registers a thread
with 32 warps; far wider rows spill.
"""

import torch
import triton
import triton.language as tl

NUM_WARPS = 8  # enough loads in flight for one row; more warps make the reduction across warps longer


@triton.jit
def softmax_row_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # rows * cols may pass 2^31
    column = tl.arange(0, BLOCK)
    inside = column < cols
    x = tl.load(x_ptr + row * cols + column, mask=inside, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * cols + column, e / tl.sum(e, axis=0), mask=inside)


def softmax(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    cols = x.shape[-1]
    block = triton.next_power_of_2(cols)
    softmax_row_kernel[(x.numel() // cols,)](x, y, cols, BLOCK=block, num_warps=NUM_WARPS)
    return y
