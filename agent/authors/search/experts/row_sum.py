# says: one program a row: partial sums per lane, reduced once at the end
# fits: row_sum(x) = x.sum(-1)
# fits: row_sum(x) = x.sum(1) where x: R C
# search: ACCESSES = 2 4 8
# search: NUM_WARPS = 8 16 32
"""Sum over the last dimension, one program a row: each lane sums its own columns, the lanes meet once at the end.

The number of columns is a constant of the kernel. Loads go straight to registers, and leave the L2 first. On an H200,
cold L2, float32, us (without the constant, by 8 warps with a row in one step, leaving the L2 last: 6.43 and 121.86;
TorchInductor's best: 5.89 and 121.25):

| warps, accesses a thread a step | 16, 4 | 32, 2 | 8, 8 | 16, 2 | 8, 4 |
|---|---|---|---|---|---|
| 64 x 8192 | 5.66 | 5.76 | 5.98 | 5.66 | 6.02 |
| 16384 x 8192 | 120.70 | 120.80 | 120.86 | 121.18 | 121.95 |
| 4096 x 16384 | 62.40 | 63.49 | 64.03 | 64.32 | 64.74 |

The last two columns leave the L2 last, with which the first takes 5.76, 121.38 and 64.45.
"""

ACCESSES = 4  # of 16 bytes, a thread, on their way at once
NUM_WARPS = 16  # at most


@triton.jit
def row_sum_kernel(x_ptr, y_ptr, COLS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, COLS, BLOCK, num_stages=1):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * COLS + column, mask=column < COLS, other=0.0, eviction_policy="evict_first")
        total += x.to(tl.float32)
    tl.store(y_ptr + row, tl.sum(total, axis=0))


def row_sum(x):
    x = x.contiguous()
    y = torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)
    cols = x.shape[-1]
    block = min(NUM_WARPS * 32 * ACCESSES * 16 // x.element_size(), triton.next_power_of_2(cols))
    # short rows have up to 8 warps of two accesses: rows of 2048 took 120.58 us by 8, 121.09 by 4, 143.94 by 16
    accesses = block * x.element_size() // (32 * 16)  # of a whole warp
    warps = max(1, accesses // ACCESSES, min(8, accesses // 2))
    row_sum_kernel[(y.numel(),)](x, y, COLS=cols, BLOCK=block, num_warps=warps)
    return y
