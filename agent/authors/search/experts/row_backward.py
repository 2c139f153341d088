# says: gradients along rows in one pass; those of weight and bias are summed by a fixed grid, then over its programs
# task: rms_norm_backward = rms_norm_backward(gradient, x, self.weight, self.eps)
# gradients: x, weight = rms_norm_backward(gradient, x, weight, eps) of F.rms_norm(x, _, weight, eps) where x: ... C, weight: C<16385
# gradients: x, weight, bias = norm_backward(gradient, x, weight, bias, eps) of F.layer_norm(x, _, weight, bias, eps) where x: ... C, weight: C<16385, bias: C
# gradients: x, r, weight = norm_backward(gradient_0, x, weight, None, eps, r, gradient_1) of (F.rms_norm(x + r, _, weight, eps), x + r) where x: ... C, r: ... C, weight: C<16385
# gradients: x, r, weight, bias = norm_backward(gradient_0, x, weight, bias, eps, r, gradient_1) of (F.layer_norm(x + r, _, weight, bias, eps), x + r) where x: ... C, r: ... C, weight: C<16385, bias: C
# search: PROGRAMS_PER_SM = 1 2 4
# search: PER_THREAD = 8 16 32
# search: ROWS = 1 2 4
# search: NUM_STAGES = 1 2 3 4
"""Backward of RMS and layer normalisation. Gradients of weight and bias are sums down columns, those of x go along
rows. Where the input was x + r, the sum's own gradient is added, and x and r have the same one.

Each program of a fixed grid walks over its rows with a sum for every column in registers, so x and the gradient are
read once for all results. The programs' sums are few enough for a second, small kernel, which adds those of weight and
bias in one launch; no atomics, so that the result is the same each time. Sums along a row that do not need each other
meet at once, so the threads of a row wait for each other half as often.

The next rows travel to shared memory meanwhile: with three stages 64 kB are under way on each multiprocessor (4096
columns of bfloat16). Triton gives such loads no policy for the L2. RMS alone on an H200, 100.8 us with two programs a
multiprocessor, 8 warps and three stages, 102.8 with 16 warps, 120.7 with one program and four stages, 130.7 with two
stages and 145.6 with one.
"""

PROGRAMS_PER_SM = 2  # of 8 warps, and more of fewer
PER_THREAD = 8  # of a row's columns
ROWS = 1  # at once
NUM_STAGES = 3
COLUMNS = 8  # of the second kernel: a program adds that many columns of all parts


@triton.jit
def two_sums(a, b):
    """Along rows, at once."""
    return tl.split(tl.sum(tl.join(a, b), axis=1))


@triton.jit
def rows_kernel(
    dy_ptr, x_ptr, residual_ptr, through_ptr, weight_ptr, dx_ptr, part_ptr, rows, eps: tl.constexpr, COLS: tl.constexpr,
    CENTRED: tl.constexpr, RESIDUAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)[None, :]
    weight = tl.load(weight_ptr + column, mask=column < COLS, other=0.0).to(tl.float32)
    total = tl.zeros([1, BLOCK], tl.float32)
    shift = tl.zeros([1, BLOCK], tl.float32)
    for start in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = start + tl.arange(0, ROWS)[:, None]
        at = row.to(tl.int64) * COLS + column
        inside = (row < rows) & (column < COLS)
        x = tl.load(x_ptr + at, mask=inside, other=0.0)
        if RESIDUAL:
            x += tl.load(residual_ptr + at, mask=inside, other=0.0)  # rounded to storage, as the sum is
            through = tl.load(through_ptr + at, mask=inside, other=0.0)
        x = x.to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
        weighted = dy * weight
        if CENTRED:
            mean, level = two_sums(x, weighted)
            x = tl.where(column < COLS, x - (mean / COLS)[:, None], 0.0)
            shift += tl.sum(dy, axis=0)[None, :]
        square, along = two_sums(x * x, weighted * x)
        # without eps a row after the last one would be 0 / 0
        scale = tl.where(start + tl.arange(0, ROWS) < rows, tl.rsqrt(square / COLS + eps), 0.0)
        normed = x * scale[:, None]
        dx = weighted - normed * (along * scale / COLS)[:, None]
        if CENTRED:
            dx -= (level / COLS)[:, None]
        dx *= scale[:, None]
        if RESIDUAL:
            dx += through.to(tl.float32)
        tl.store(dx_ptr + at, dx, mask=inside)
        total += tl.sum(dy * normed, axis=0)[None, :]
    own = tl.program_id(0) * COLS + column
    tl.store(part_ptr + own, total, mask=column < COLS)
    if CENTRED:
        tl.store(part_ptr + tl.num_programs(0) * COLS + own, shift, mask=column < COLS)


@triton.jit
def columns_kernel(
    part_ptr, dw_ptr, db_ptr, parts, COLS: tl.constexpr, CENTRED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, parts, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        inside = (row < parts) & (column[None, :] < COLS)
        at = (tl.program_id(1) * parts + row) * COLS + column[None, :]
        total += tl.load(part_ptr + at, mask=inside, other=0.0)
    total = tl.sum(total, axis=0)
    tl.store(dw_ptr + column, total, mask=(column < COLS) & (tl.program_id(1) == 0))
    if CENTRED:
        tl.store(db_ptr + column, total, mask=(column < COLS) & (tl.program_id(1) == 1))


def rms_norm_backward(gradient, x, weight, eps):
    return norm_backward(gradient, x, weight, None, eps)


def norm_backward(gradient, x, weight, bias, eps, residual=None, through=None):
    gradient, x = gradient.contiguous(), x.contiguous()
    if residual is not None:
        residual, through = residual.contiguous(), through.contiguous()
    cols = x.shape[-1]
    rows = x.numel() // cols
    block = triton.next_power_of_2(cols)
    # at most 32 columns a thread, of which each keeps several numbers; programs of few warps are more
    warps = max(1, min(8, block // (32 * PER_THREAD)), min(32, block // 1024))
    programs = PROGRAMS_PER_SM * max(1, 8 // warps)
    programs *= torch.cuda.get_device_properties(x.device).multi_processor_count
    programs = min(programs, triton.cdiv(rows, ROWS))
    # as many stages as shared memory has room for
    taken = (2 if residual is None else 4) * ROWS * block * x.element_size()
    stages = max(1, min(NUM_STAGES, (192 << 10) // taken))
    dx = torch.empty_like(x)
    results = [torch.empty_like(one) for one in (weight, bias) if one is not None]
    dw, db = results if bias is not None else (*results, None)
    parts = torch.empty((len(results), programs, cols), dtype=torch.float32, device=x.device)
    rows_kernel[(programs,)](
        gradient, x, residual, through, weight, dx, parts, rows, eps, COLS=cols,
        CENTRED=bias is not None, RESIDUAL=residual is not None, ROWS=ROWS, BLOCK=block, STAGES=stages, num_warps=warps,
    )  # fmt: skip
    columns_kernel[(triton.cdiv(cols, COLUMNS), len(results))](
        parts, dw, db, programs, COLS=cols, CENTRED=bias is not None, ROWS=2048 // COLUMNS, BLOCK=COLUMNS, num_warps=4
    )  # fmt: skip
    return (dx, *results) if residual is None else (dx, dx, *results)
