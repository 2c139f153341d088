# says: the largest magnitude and the quotients in one pass, rows in registers
# task: quantize_int8 = quantize(x, 127.0, torch.int8)
# task: quantize_fp8 = quantize(x, 448.0, torch.float8_e4m3fn)
# search: ROWS = 1 2 4
# search: NUM_WARPS = 2 4 8
"""Quantisation of each row to 8 bits with a scale: a row is read once, reduced, divided, rounded and written.

Fewer warps, which meet sooner and leave room for more rows, are faster. On an H200, 16384 x 8192 of bfloat16 takes
93.1 us to int8 with a row by 4 warps, 95.0 by 8, 105.9 by 16, 165.8 with two rows by 8; 93.0, 93.8, 103.5 and 158.8
to fp8. Loads leave the L2 last: 1.2 % more without. Two things made that of 115.0 and 103.9 us (by 8 warps;
TorchInductor's time for int8 is 109):

- the quotient by one reciprocal a row is corrected by what it leaves of x (Markstein): three instructions a number, and
  correctly rounded like torch's, so that quotients in the middle of two results fall to the same side;
- with 1.5 * 2^23 added, the last bits of the sum are the integer, halves to even, as torch.round has them. A
  conversion is done at a quarter of the pace of an addition.
"""

ROWS = 1
NUM_WARPS = 4


@triton.jit
def quantize_kernel(
    x_ptr, q_ptr, scale_ptr, rows, cols, largest,
    INTEGER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < cols)
    x = tl.load(x_ptr + row * cols + column, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(x), axis=1)[:, None], 1e-8), largest)
    factor = tl.div_rn(1.0, scale)
    near = x * factor
    quotient = tl.fma(tl.fma(-near, scale, x), factor, near)
    if INTEGER:
        found = (quotient + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)
    else:
        found = quotient.to(q_ptr.dtype.element_ty)  # what rounding puts above `largest` rounds to it
    tl.store(q_ptr + row * cols + column, found, mask=inside)
    tl.store(scale_ptr + row, scale, mask=row < rows)


def quantize(x, largest, dtype):
    x = x.contiguous()
    rows, cols = x.shape
    q = torch.empty((rows, cols), dtype=dtype, device=x.device)
    scale = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(cols)
    height = max(1, min(ROWS, 16384 // block))
    warps = max(NUM_WARPS, min(32, height * block // 2048))  # at most 64 elements of wide rows a thread
    quantize_kernel[(triton.cdiv(rows, height),)](
        x, q, scale, rows, cols, largest,
        INTEGER=not dtype.is_floating_point, ROWS=height, BLOCK=block,
        num_warps=warps,
    )  # fmt: skip
    return q, scale
