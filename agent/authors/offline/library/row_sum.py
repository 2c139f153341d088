# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: one program a row: partial sums per lane, reduced once at the end
# fits: row_sum(x) = x.sum(-1)
# fits: row_sum(x) = x.sum(1) where x: R C
# search: BLOCK = 256 512 1024 2048 4096 8192 16384
# search: NUM_WARPS = 1 2 4 8 16 32
# search: NUM_STAGES = 1 2 3 4
"""Sum over the last dimension, one program a row: each lane sums its own columns, the lanes meet once at the end."""

import torch
import triton
import triton.language as tl

BLOCK = 4096
NUM_WARPS = 8
NUM_STAGES = 3


@triton.jit
def row_sum_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * cols + column, mask=column < cols, other=0.0).to(tl.float32)
    tl.store(y_ptr + row, tl.sum(total, axis=0))


def row_sum(x):
    x = x.contiguous()
    y = torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)
    cols = x.shape[-1]
    block = min(BLOCK, triton.next_power_of_2(cols))
    row_sum_kernel[(y.numel(),)](x, y, cols, BLOCK=block, STAGES=NUM_STAGES, num_warps=NUM_WARPS)
    return y
