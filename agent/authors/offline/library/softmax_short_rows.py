# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# order: 4
# says: several rows a program: short rows alone would leave most of a warp idle
# fits: softmax(x) = torch.softmax(x, -1) where x: ... C<65537
# fits: softmax(x) = torch.softmax(x, 1) where x: R C<65537
# search: TILE = 256 512 1024 2048 4096 8192 16384
# search: NUM_WARPS = 1 2 4 8 16 32
"""Softmax over the last dimension for short rows: each program takes a tile of several rows.

A row of a few hundred columns does not fill a program's threads; a tile does, and one program's start-up is shared
by all its rows.
"""

import torch
import triton
import triton.language as tl

TILE = 4096  # elements a program
NUM_WARPS = 4


@triton.jit
def softmax_tile_kernel(x_ptr, y_ptr, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (column < cols)
    # rows beyond the end are loaded as zeros: their exp is finite and they are not stored
    x = tl.load(x_ptr + row * cols + column, mask=inside, other=0.0).to(tl.float32)
    x = tl.where(column < cols, x, -float("inf"))
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    tl.store(y_ptr + row * cols + column, e / tl.sum(e, axis=1)[:, None], mask=inside)


def softmax(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    cols = x.shape[-1]
    rows = x.numel() // cols
    block = triton.next_power_of_2(cols)
    height = max(1, TILE // block)
    grid = (triton.cdiv(rows, height),)
    softmax_tile_kernel[grid](x, y, rows, cols, ROWS=height, COLS=block, num_warps=NUM_WARPS)
    return y
