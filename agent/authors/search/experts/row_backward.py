# says: gradients along rows in one pass; the weight's gradient is summed by a fixed grid, then over its programs
# task: rms_norm_backward = rms_norm_backward(gradient, x, self.weight, self.eps)
# search: PROGRAMS_PER_SM = 1 2 4
# search: NUM_WARPS = 8 16
# search: NUM_STAGES = 2 3 4
"""Backward of RMS normalisation. Gradients of the weight are sums down columns, those of x go along rows.

Each program of a fixed grid walks over its rows with a sum for every column in registers, so x and the gradient are
read once for both results. The programs' sums are few enough for a second, small kernel; no atomics, so that the
result is the same each time.

The next rows travel to shared memory meanwhile: with three stages 64 kB are under way on each multiprocessor (4096
columns of bfloat16). Triton gives such loads no policy for the L2. On an H200, 100.8 us with two programs a
multiprocessor, 8 warps and three stages, 102.8 with 16 warps, 120.7 with one program and four stages, 130.7 with two
stages and 145.6 with one.
"""

PROGRAMS_PER_SM = 2
NUM_WARPS = 8
NUM_STAGES = 3
COLUMNS = 32  # of the second kernel: a program adds that many columns of all parts


@triton.jit
def rows_kernel(
    dy_ptr, x_ptr, weight_ptr, dx_ptr, part_ptr, rows, cols, eps,
    COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLS)
    inside = column < cols
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([COLS], tl.float32)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        at = row.to(tl.int64) * cols + column
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps)
        normed, weighted = x * scale, dy * weight
        dx = (weighted - normed * (tl.sum(weighted * normed, axis=0) / cols)) * scale
        tl.store(dx_ptr + at, dx, mask=inside)
        total += dy * normed
    tl.store(part_ptr + tl.program_id(0) * cols + column, total, mask=inside)


@triton.jit
def columns_kernel(part_ptr, dw_ptr, parts, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    total = tl.zeros([ROWS, COLS], tl.float32)
    for start in range(0, parts, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        inside = (row < parts) & (column[None, :] < cols)
        total += tl.load(part_ptr + row * cols + column[None, :], mask=inside, other=0.0)
    tl.store(dw_ptr + column, tl.sum(total, axis=0), mask=column < cols)


def rms_norm_backward(gradient, x, weight, eps):
    gradient, x = gradient.contiguous(), x.contiguous()
    rows, cols = x.shape
    programs = PROGRAMS_PER_SM * torch.cuda.get_device_properties(x.device).multi_processor_count
    programs = min(programs, rows)
    dx = torch.empty_like(x)
    dw = torch.empty((cols,), dtype=x.dtype, device=x.device)
    parts = torch.empty((programs, cols), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(cols)
    # as many stages as shared memory has room for, and at most 32 columns a thread, of which each keeps several numbers
    stages = max(1, min(NUM_STAGES, (192 << 10) // (2 * block * x.element_size())))
    warps = max(NUM_WARPS, min(32, block // 1024))
    rows_kernel[(programs,)](
        gradient, x, weight, dx, parts, rows, cols, eps,
        COLS=block, STAGES=stages, num_warps=warps,
    )  # fmt: skip
    columns_kernel[(triton.cdiv(cols, COLUMNS),)](parts, dw, programs, cols, ROWS=32, COLS=COLUMNS, num_warps=4)
    return dx, dw
