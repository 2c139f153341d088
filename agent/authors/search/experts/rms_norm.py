# says: single pass: whole rows in registers, read once, few rows a program
# fits: rms_norm(x, weight, eps) = F.rms_norm(x, _, weight, eps) where x: ... C, weight: C<65537
# search: ROWS = 1 2 4
# search: NUM_WARPS = 4 8 16
"""RMS normalisation over the last dimension: a row is read once and stays in registers.

On an H200, 16384 x 4096 of bfloat16 took 64.0 us with a row by 8 warps or two by 16, 64.3 with two by 8, 64.4 with a
row by 4, 65.5 with four by 16. Rows leave the L2 last: 65.3 without. The same in PTX took 63.9.
"""

ROWS = 1
NUM_WARPS = 8


@triton.jit
def rms_norm_kernel(
    x_ptr, weight_ptr, y_ptr, rows, eps: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < COLS)
    x = tl.load(x_ptr + row * COLS + column, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < COLS, other=0.0, eviction_policy="evict_last").to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / COLS + eps)
    tl.store(y_ptr + row * COLS + column, x * scale[:, None] * weight, mask=inside)


def rms_norm(x, weight, eps):
    x = x.contiguous()
    y = torch.empty_like(x)
    cols = x.shape[-1]
    block = triton.next_power_of_2(cols)
    rows = x.numel() // cols
    height = max(1, min(ROWS, 16384 // block))
    warps = max(NUM_WARPS, min(32, height * block // 2048))  # at most 64 elements of wide rows a thread
    rms_norm_kernel[(triton.cdiv(rows, height),)](
        x, weight, y, rows, eps, COLS=cols, ROWS=height, BLOCK=block, num_warps=warps
    )
    return y
