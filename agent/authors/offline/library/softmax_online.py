# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# order: 3
# says: online: running maximum and sum over blocks of columns, then a second read that hits the L2 cache
# fits: softmax(x) = torch.softmax(x, -1)
# fits: softmax(x) = torch.softmax(x, 1) where x: R C
# search: BLOCK = 256 512 1024 2048 4096 8192 16384
# search: NUM_WARPS = 1 2 4 8 16 32
# search: NUM_STAGES = 1 2 3 4
"""Softmax over the last dimension, online: one walk over the row for maximum and sum together, a second to write.

Registers no longer limit the width of a row. The second read mostly hits the L2 cache, because the row was read just
before by the same program.
"""

import torch
import triton
import triton.language as tl

BLOCK = 4096  # columns a step
NUM_WARPS = 8
NUM_STAGES = 2


@triton.jit
def softmax_online_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * cols
    y_ptr += row * cols
    # every lane keeps its own maximum and sum; they meet once, after the loop
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column, mask=column < cols, other=-float("inf")).to(tl.float32)
        new_top = tl.maximum(top, x)
        # a lane that has seen only -inf adds nothing (-inf - -inf would be NaN)
        safe = tl.where(new_top == -float("inf"), 0.0, new_top)
        total = total * tl.exp(top - safe) + tl.exp(x - safe)
        top = new_top
    row_top = tl.max(top, axis=0)
    row_total = tl.sum(total * tl.exp(top - row_top), axis=0)
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        inside = column < cols
        x = tl.load(x_ptr + column, mask=inside, other=-float("inf")).to(tl.float32)
        tl.store(y_ptr + column, tl.exp(x - row_top) / row_total, mask=inside)


def softmax(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    cols = x.shape[-1]
    block = min(BLOCK, triton.next_power_of_2(cols))
    grid = (x.numel() // cols,)
    softmax_online_kernel[grid](x, y, cols, BLOCK=block, STAGES=NUM_STAGES, num_warps=NUM_WARPS)
    return y
