# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# order: 1
# says: single pass: whole rows in registers, read once
# fits: softmax(x) = torch.softmax(x, -1) where x: ... C<65537
# fits: softmax(x) = torch.softmax(x, 1) where x: R C<65537
# search: ROWS = 1 2 4
# search: NUM_WARPS = 2 4 8 16 32
"""Softmax over the last dimension, ROWS rows a program: a row is read once and stays in registers.

Memory traffic is the least possible, one read and one write. Rows must fit: 64 K columns are 64 registers a thread
with 32 warps, whatever NUM_WARPS says; far wider rows spill.
"""

import torch
import triton
import triton.language as tl

ROWS = 1
NUM_WARPS = 16  # 8192 x 8192 of float32 on an H200: 127.9 us; 131.0 with 8 warps


@triton.jit
def softmax_row_kernel(x_ptr, y_ptr, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # rows * cols may pass 2^31
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < cols)
    x = tl.load(x_ptr + row * cols + column, mask=inside, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    tl.store(y_ptr + row * cols + column, e / tl.sum(e, axis=1)[:, None], mask=inside)


def softmax(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    cols = x.shape[-1]
    block = triton.next_power_of_2(cols)
    rows = x.numel() // cols
    height = max(1, min(ROWS, 16384 // block))
    warps = max(NUM_WARPS, min(32, block // 2048))  # at most 64 elements of a wide row a thread
    grid = (triton.cdiv(rows, height),)
    softmax_row_kernel[grid](x, y, rows, cols, ROWS=height, BLOCK=block, num_warps=warps)
    return y
