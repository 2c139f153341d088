# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: one program a row: partial sums per lane, reduced once at the end
# fits: row_sum(x) = x.sum(-1)
# fits: row_sum(x) = x.sum(1) where x: R C
# search: BLOCK = 2048 4096 8192
# search: NUM_WARPS = 4 8 16
# search: NUM_STAGES = 1 3
# search: LEAVES_LAST = 0 1
"""Sum over the last dimension, one program a row: each lane sums its own columns, the lanes meet once at the end.

On an H200, 16384 x 8192 of float32 took 119.6-120.0 us with blocks on their way to shared memory ahead of time
(NUM_STAGES 2 and 3), 118.3 in TorchInductor's kernel without that way. One stage loads straight to registers: 8192
columns by 16 warps are a whole row, all loads under way at once, and only such loads carry a policy for the L2
(LEAVES_LAST) in Triton; not timed.
"""

import torch
import triton
import triton.language as tl

BLOCK = 8192
NUM_WARPS = 16
NUM_STAGES = 1
LEAVES_LAST = 1


@triton.jit
def row_sum_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr, POLICY: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + column, mask=column < cols, other=0.0, eviction_policy=POLICY)
        total += x.to(tl.float32)
    tl.store(y_ptr + row, tl.sum(total, axis=0))


def row_sum(x):
    x = x.contiguous()
    y = torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)
    cols = x.shape[-1]
    block = min(BLOCK, triton.next_power_of_2(cols))
    warps = max(1, min(NUM_WARPS, block // 32))
    row_sum_kernel[(y.numel(),)](
        x, y, cols, BLOCK=block, STAGES=NUM_STAGES, POLICY="evict_last" if LEAVES_LAST else "", num_warps=warps
    )
    return y
