# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: both operands of a row in registers, read once; several short rows a program
# task: softmax_backward = softmax_backward(gradient, y)
# search: TILE = 2048 8192 16384
# search: NUM_WARPS = 8 16 32
# search: LEAVES_LAST = 0 1
"""Backward of softmax over the last dimension: dx = y dy - y sum(y dy), a row (or a tile of short rows) a program.

Both operands are loaded before the one barrier, so a row of 8192 float32 by 16 warps has 64 kB under way; more warps
leave room for two rows a multiprocessor. Loads leave the L2 last, as in softmax, where that gained 2 %; not timed
here.
"""

import torch
import triton
import triton.language as tl

TILE = 8192  # elements a program, at least one row
NUM_WARPS = 16
LEAVES_LAST = 1


@triton.jit
def softmax_backward_kernel(
    dy_ptr, y_ptr, dx_ptr, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr, POLICY: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLS)[None, :]
    at = row * cols + column
    inside = (row < rows) & (column < cols)
    y = tl.load(y_ptr + at, mask=inside, other=0.0, eviction_policy=POLICY).to(tl.float32)
    dy = tl.load(dy_ptr + at, mask=inside, other=0.0, eviction_policy=POLICY).to(tl.float32)
    product = y * dy
    tl.store(dx_ptr + at, product - y * tl.sum(product, axis=1)[:, None], mask=inside)


def softmax_backward(gradient, y):
    gradient, y = gradient.contiguous(), y.contiguous()
    dx = torch.empty_like(y)
    cols = y.shape[-1]
    rows = y.numel() // cols
    block = triton.next_power_of_2(cols)
    height = max(1, TILE // block)
    warps = max(NUM_WARPS, min(32, height * block // 1024))  # at most 32 elements of each operand a thread
    softmax_backward_kernel[(triton.cdiv(rows, height),)](
        gradient, y, dx, rows, cols, ROWS=height, COLS=block, POLICY="evict_last" if LEAVES_LAST else "",
        num_warps=warps,
    )  # fmt: skip
    return dx
