# says: residual added and normalised in one pass, a row in registers, several short rows a program
# fits: rms_norm(x, weight, eps, residual=r) = (F.rms_norm(x + r, _, weight, eps), x + r) where x: ... C, r: ... C, weight: C<65537
# fits: layer_norm(x, weight, bias, eps, residual=r) = (F.layer_norm(x + r, _, weight, bias, eps), x + r) where x: ... C, r: ... C, weight: C<65537
# fits: layer_norm(x, weight, bias, eps) = F.layer_norm(x, _, weight, bias, eps) where x: ... C, weight: C<65537, bias: C
# search: TILE = 1024 2048 4096 8192
# search: PER_THREAD = 8 16 32 64
# search: LEAVES_LAST = 0 1
"""RMS and layer normalisation over the last dimension, with or without a residual that is added first.

Rows are read once and stay in registers; mean and variance are taken in two passes over registers, never as E[x^2] -
E[x]^2, which loses everything where the mean is large. Rows go several to a program (TILE elements).

On an H200, what is read leaves the L2 last. Rows of 4096 bfloat16 (RMS, residual) by 16 warps: 125.7 us, by 8 or 4
126.7, by 8 without that policy 131.4. Rows
of 4096 float32 (layer norm) by 8 warps: 126.5 (130.2 without), by 16 133.7. Rows
of 1280 bfloat16 with a residual: 2048 elements by 4 warps 156.8, 4096 by 8 157.1 (160.1 without), 4096 by 16 189.6.
Where all rows fit the L2 it is the other way round: 6304 x 1024 bfloat16 (layer norm, residual), a row by 2 warps,
16.13 without, 16.35 with it; 2048 elements by 4 warps 16.32, 4096 by 8 16.90 (17.28 before the number of columns was a
constant of the kernel); TorchInductor's best 16.77.
"""

TILE = 1024  # elements a program, at least one row
PER_THREAD = 16  # of these
LEAVES_LAST = 1


@triton.jit
def row_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, y_ptr, sum_ptr, rows, eps: tl.constexpr, COLS: tl.constexpr,
    RESIDUAL: tl.constexpr, CENTRED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    at = row * COLS + column
    inside = (row < rows) & (column < COLS)
    weight = tl.load(weight_ptr + column, mask=column < COLS, other=0.0, eviction_policy="evict_last")
    if CENTRED:
        bias = tl.load(bias_ptr + column, mask=column < COLS, other=0.0, eviction_policy="evict_last")
    h = tl.load(x_ptr + at, mask=inside, other=0.0, eviction_policy=POLICY)
    if RESIDUAL:
        # rounded to storage, as the second output is
        h += tl.load(residual_ptr + at, mask=inside, other=0.0, eviction_policy=POLICY)
        tl.store(sum_ptr + at, h, mask=inside)
    h = h.to(tl.float32)
    if CENTRED:
        h = tl.where(column < COLS, h - (tl.sum(h, axis=1) / COLS)[:, None], 0.0)
    y = h * tl.rsqrt(tl.sum(h * h, axis=1) / COLS + eps)[:, None] * weight.to(tl.float32)
    if CENTRED:
        y += bias.to(tl.float32)
    tl.store(y_ptr + at, y, mask=inside)


def rms_norm(x, weight, eps, residual=None):
    return norm(x, weight, None, eps, residual)


def layer_norm(x, weight, bias, eps, residual=None):
    return norm(x, weight, bias, eps, residual)


def norm(x, weight, bias, eps, residual):
    x = x.contiguous()
    residual = None if residual is None else residual.contiguous()
    y = torch.empty_like(x)
    total = None if residual is None else torch.empty_like(x)
    cols = x.shape[-1]
    rows = x.numel() // cols
    block = triton.next_power_of_2(cols)
    height = max(1, TILE // block)
    warps = max(1, min(32, height * block // (32 * PER_THREAD)))
    row_norm_kernel[(triton.cdiv(rows, height),)](
        x, residual, weight, bias, y, total, rows, eps, COLS=cols,
        RESIDUAL=residual is not None, CENTRED=bias is not None, ROWS=height, BLOCK=block,
        POLICY="evict_last" if LEAVES_LAST else "", num_warps=warps,
    )  # fmt: skip
    return y if residual is None else (y, total)
