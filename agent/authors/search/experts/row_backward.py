# says: gradients along rows in one pass; those of weight and bias are summed by a fixed grid, then over its programs
# task: rms_norm_backward = rms_norm_backward(gradient, x, self.weight, self.eps)
# gradients: x, weight = rms_norm_backward(gradient, x, weight, eps) of F.rms_norm(x, _, weight, eps) where x: ... C, weight: C<16385
# gradients: x, weight, bias = norm_backward(gradient, x, weight, bias, eps) of F.layer_norm(x, _, weight, bias, eps) where x: ... C, weight: C<16385, bias: C
# gradients: x, r, weight = norm_backward(gradient_0, x, weight, None, eps, r, gradient_1) of (F.rms_norm(x + r, _, weight, eps), x + r) where x: ... C, r: ... C, weight: C<16385
# gradients: x, r, weight, bias = norm_backward(gradient_0, x, weight, bias, eps, r, gradient_1) of (F.layer_norm(x + r, _, weight, bias, eps), x + r) where x: ... C, r: ... C, weight: C<16385, bias: C
# search: PROGRAMS_PER_SM = 1 2 4
# search: NUM_WARPS = 8 16
# search: NUM_STAGES = 2 3 4
"""Backward of RMS and layer normalisation. Gradients of weight and bias are sums down columns, those of x go along
rows. Where the input was x + r, the sum's own gradient is added, and x and r have the same one.

Each program of a fixed grid walks over its rows with a sum for every column in registers, so x and the gradient are
read once for all results. The programs' sums are few enough for a second, small kernel; no atomics, so that the
result is the same each time.

The next rows travel to shared memory meanwhile: with three stages 64 kB are under way on each multiprocessor (4096
columns of bfloat16). Triton gives such loads no policy for the L2. RMS alone on an H200, 100.8 us with two programs a
multiprocessor, 8 warps and three stages, 102.8 with 16 warps, 120.7 with one program and four stages, 130.7 with two
stages and 145.6 with one.
"""

PROGRAMS_PER_SM = 2  # of 8 warps
NUM_WARPS = 8
NUM_STAGES = 3
COLUMNS = 32  # of the second kernel: a program adds that many columns of all parts


@triton.jit
def rows_kernel(
    dy_ptr, x_ptr, residual_ptr, through_ptr, weight_ptr, dx_ptr, part_ptr, shift_ptr, rows, cols, eps: tl.constexpr,
    CENTRED: tl.constexpr, RESIDUAL: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLS)
    inside = column < cols
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([COLS], tl.float32)
    shift = tl.zeros([COLS], tl.float32)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        at = row.to(tl.int64) * cols + column
        x = tl.load(x_ptr + at, mask=inside, other=0.0)
        if RESIDUAL:
            x += tl.load(residual_ptr + at, mask=inside, other=0.0)  # rounded to storage, as the sum is
        x = x.to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if CENTRED:
            x = tl.where(inside, x - tl.sum(x, axis=0) / cols, 0.0)
        scale = tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps)
        normed, weighted = x * scale, dy * weight
        dx = weighted - normed * (tl.sum(weighted * normed, axis=0) / cols)
        if CENTRED:
            dx -= tl.sum(weighted, axis=0) / cols
            shift += dy
        dx *= scale
        if RESIDUAL:
            dx += tl.load(through_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + at, dx, mask=inside)
        total += dy * normed
    tl.store(part_ptr + tl.program_id(0) * cols + column, total, mask=inside)
    if CENTRED:
        tl.store(shift_ptr + tl.program_id(0) * cols + column, shift, mask=inside)


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
    return norm_backward(gradient, x, weight, None, eps)


def norm_backward(gradient, x, weight, bias, eps, residual=None, through=None):
    gradient, x = gradient.contiguous(), x.contiguous()
    if residual is not None:
        residual, through = residual.contiguous(), through.contiguous()
    cols = x.shape[-1]
    rows = x.numel() // cols
    block = triton.next_power_of_2(cols)
    # at most 32 columns a thread, of which each keeps several numbers, and at least 8 where rows are short: then more
    # programs have as many warps
    warps = max(min(NUM_WARPS, block // 256), min(32, block // 1024), 1)
    programs = PROGRAMS_PER_SM * max(1, min(8, NUM_WARPS // warps))
    programs = min(programs * torch.cuda.get_device_properties(x.device).multi_processor_count, rows)
    # as many stages as shared memory has room for
    stages = max(1, min(NUM_STAGES, (192 << 10) // ((2 if residual is None else 4) * block * x.element_size())))
    dx = torch.empty_like(x)
    sums = [one for one in (weight, bias) if one is not None]
    parts = [torch.empty((programs, cols), dtype=torch.float32, device=x.device) for _ in sums]
    rows_kernel[(programs,)](
        gradient, x, residual, through, weight, dx, parts[0], parts[-1], rows, cols, eps,
        CENTRED=bias is not None, RESIDUAL=residual is not None, COLS=block, STAGES=stages, num_warps=warps,
    )  # fmt: skip
    results = [torch.empty_like(one) for one in sums]
    height = 32 if programs <= 512 else 128
    for part, result in zip(parts, results):
        columns_kernel[(triton.cdiv(cols, COLUMNS),)](
            part, result, programs, cols, ROWS=height, COLS=COLUMNS, num_warps=4
        )
    return (dx, *results) if residual is None else (dx, dx, *results)
