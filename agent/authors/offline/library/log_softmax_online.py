# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: maximum and sum in one walk over the row, then a second read that hits the L2 cache
# fits: log_softmax(x) = torch.log_softmax(x, -1)
# fits: log_softmax(x) = torch.log_softmax(x, 1) where x: R C
# search: BLOCK = 1024 2048 4096 8192 16384
# search: NUM_WARPS = 4 8 16 32
# search: NUM_STAGES = 1 2 3 4
"""Log-softmax over the last dimension for rows that do not fit the registers of a program, a vocabulary wide.

The first walk keeps the row in the L2 cache if it can (evict last), the second is its last use (evict first). What is
subtracted is the maximum first and then the logarithm: both at once would round the larger away.
"""

import torch
import triton
import triton.language as tl

BLOCK = 4096
NUM_WARPS = 8
NUM_STAGES = 2


@triton.jit
def log_softmax_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * cols
    y_ptr += row * cols
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column, mask=column < cols, other=-float("inf"), eviction_policy="evict_last")
        x = x.to(tl.float32)
        higher = tl.maximum(top, x)
        safe = tl.where(higher == -float("inf"), 0.0, higher)  # a lane that has seen only -inf adds nothing
        total = total * tl.exp(top - safe) + tl.exp(x - safe)
        top = higher
    row_top = tl.max(top, axis=0)
    log_total = tl.log(tl.sum(total * tl.exp(top - row_top), axis=0))
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        inside = column < cols
        x = tl.load(x_ptr + column, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        tl.store(y_ptr + column, (x - row_top) - log_total, mask=inside)


def log_softmax(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    cols = x.shape[-1]
    block = min(BLOCK, triton.next_power_of_2(cols))
    grid = (x.numel() // cols,)
    log_softmax_kernel[grid](x, y, cols, BLOCK=block, STAGES=NUM_STAGES, num_warps=NUM_WARPS)
    return y
