# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: square tiles turned in shared memory, so that reads and writes both run along memory
# fits: transpose(x) = x.t().contiguous() where x: R C
# search: BLOCK_ROWS = 32 64 128
# search: BLOCK_COLS = 32 64 128
# search: NUM_WARPS = 2 4 8
# search: LEAVES_LAST = 0 1
"""Transposition into new memory. A tile is read along rows and written along columns; the exchange between threads is
the compiler's, in swizzled shared memory. Programs run down a column of tiles first, so that writes of neighbours
meet. 64 x 64 of bfloat16 by 4 warps are 16-byte accesses on either side; what is read leaves the L2 last. Not timed.
"""

import torch
import triton
import triton.language as tl

BLOCK_ROWS = 64
BLOCK_COLS = 64
NUM_WARPS = 4
LEAVES_LAST = 1


@triton.jit
def transpose_kernel(x_ptr, y_ptr, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr, POLICY: tl.constexpr):
    high = tl.cdiv(rows, ROWS)
    row = (tl.program_id(0) % high).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) // high).to(tl.int64) * COLS + tl.arange(0, COLS)
    inside = (row[:, None] < rows) & (column[None, :] < cols)
    x = tl.load(x_ptr + row[:, None] * cols + column[None, :], mask=inside, eviction_policy=POLICY)
    tl.store(y_ptr + column[:, None] * rows + row[None, :], tl.trans(x), mask=tl.trans(inside))


def transpose(x):
    x = x.contiguous()
    rows, cols = x.shape
    y = torch.empty((cols, rows), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, BLOCK_ROWS) * triton.cdiv(cols, BLOCK_COLS),)
    policy = "evict_last" if LEAVES_LAST else ""
    warps = max(NUM_WARPS, min(32, BLOCK_ROWS * BLOCK_COLS // 2048))  # at most 64 elements a thread
    transpose_kernel[grid](x, y, rows, cols, ROWS=BLOCK_ROWS, COLS=BLOCK_COLS, POLICY=policy, num_warps=warps)
    return y
