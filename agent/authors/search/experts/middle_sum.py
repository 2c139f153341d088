# says: sum over a dimension that is not the last: columns side by side, the sum shared by several programs where columns are few
# fits: sum_over(x, 0, False) = x.sum(0) where x: R C
# fits: sum_over(x, 1, True) = x.sum(1, keepdim=True) where x: B<65536 R C
# fits: sum_over(x, 1, False) = x.sum(1) where x: B<65536 R C
# fits: mean_over(x, 1, False) = x.mean(1) where x: B<65536 R C
# search: BLOCK_ROWS = 8 16 32
# search: BLOCK_COLS = 64 128 256
# search: PROGRAMS_PER_SM = 4 8 16
# search: NUM_WARPS = 4 8
"""Sum over the first or a middle dimension: (outer, rows, columns) -> (outer, columns).

Each program sums a strip of neighbouring columns over a part of the rows, in registers. Where outer x columns alone
do not fill the GPU, the rows are split and a second kernel adds the parts (no atomics: the result stays the same each
time); it has narrow strips, whose parts are all under way at once. On an H200, 32768 x 4096 of float32 takes 123.4 us
with tiles of 8 x 64 by 4 warps and 16 programs a multiprocessor, 123.9 with 32 x 64 and 8, 124.3-124.5 with 16 x 128
and 8 or 16 x 256 and 4, 128.5 with 8 x 128 and 16, 134.3 with 32 x 128 by 8 warps and 8. A policy for the L2 makes no
difference. Where there are many more strips than the GPU holds, none is split, and single warps that wait for nobody
are best: 128 x 4096 x 4095 takes 2066 us with 4 x 64 by one, 2289 with 8 x 64 by one, 2271 with 64 x 64 by 16, 2600
with 8 x 64 by 4; eager 2167.
"""

BLOCK_ROWS = 8
BLOCK_COLS = 64
PROGRAMS_PER_SM = 16
NUM_WARPS = 4


@triton.jit
def middle_sum_kernel(x_ptr, y_ptr, rows, cols, part, scale, ROWS: tl.constexpr, COLS: tl.constexpr):
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    outer = tl.program_id(2).to(tl.int64)
    first = tl.program_id(1) * part
    end = tl.minimum(first + part, rows)
    total = tl.zeros([ROWS, COLS], tl.float32)
    for start in tl.range(first, end, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        at = (outer * rows + row) * cols + column
        inside = (row < end) & (column < cols)
        total += tl.load(x_ptr + at, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    at = (outer * tl.num_programs(1) + tl.program_id(1)) * cols + tl.program_id(0) * COLS + tl.arange(0, COLS)
    inside = tl.program_id(0) * COLS + tl.arange(0, COLS) < cols
    tl.store(y_ptr + at, tl.sum(total, axis=0) * scale, mask=inside)


def sum_over(x, dim, keepdim, scale=1.0):
    x = x.contiguous()
    rows, cols = x.shape[dim], x.shape[-1]
    outer = x.shape[0] if dim == 1 else 1
    width = min(BLOCK_COLS, triton.next_power_of_2(cols))
    strips = triton.cdiv(cols, width)
    wanted = PROGRAMS_PER_SM * torch.cuda.get_device_properties(x.device).multi_processor_count
    splits = max(1, min(wanted // (strips * outer), triton.cdiv(rows, 4 * BLOCK_ROWS)))
    part = triton.cdiv(rows, splits)
    splits = triton.cdiv(rows, part)
    shape = [n for d, n in enumerate(x.shape) if d != dim]
    y = torch.empty(shape, dtype=x.dtype, device=x.device)
    parts = torch.empty((outer, splits, cols), dtype=torch.float32, device=x.device) if splits > 1 else y
    high, warps = BLOCK_ROWS, max(NUM_WARPS, min(32, BLOCK_ROWS * width // 1024))  # at most 32 sums a thread
    if strips * outer >= 2 * wanted:  # single warps, as above
        high, warps = 4, 1
    middle_sum_kernel[(strips, splits, outer)](
        x, parts, rows, cols, part, scale if splits == 1 else 1.0, ROWS=high, COLS=width, num_warps=warps
    )
    if splits > 1:  # all parts under way at once, in narrow strips: there is little to add for a whole GPU
        high, wide = min(64, triton.next_power_of_2(splits)), min(32, width)
        middle_sum_kernel[(triton.cdiv(cols, wide), 1, outer)](
            parts, y, splits, cols, splits, scale, ROWS=high, COLS=wide, num_warps=4
        )
    return y.unsqueeze(dim) if keepdim else y


def mean_over(x, dim, keepdim):
    return sum_over(x, dim, keepdim, 1.0 / x.shape[dim])
