# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: the largest magnitude and the quotients in one pass, rows in registers
# task: quantize_int8 = quantize(x, 127.0, torch.int8)
# task: quantize_fp8 = quantize(x, 448.0, torch.float8_e4m3fn)
# search: ROWS = 1 2 4
# search: NUM_WARPS = 4 8 16 32
# search: LEAVES_LAST = 0 1
"""Quantisation of each row to 8 bits with a scale: a row is read once, reduced, divided, rounded and written.

A row of 8192 bfloat16 by 16 warps is two 16-byte loads a thread and one 16-byte store of 8-bit numbers; three such
programs have 48 kB under way on a multiprocessor. What is read leaves the L2 last. Not timed.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

ROWS = 1
NUM_WARPS = 16
LEAVES_LAST = 1


@triton.jit
def quantize_kernel(
    x_ptr, q_ptr, scale_ptr, rows, cols, largest,
    INTEGER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < cols)
    x = tl.load(x_ptr + row * cols + column, mask=inside, other=0.0, eviction_policy=POLICY).to(tl.float32)
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(x), axis=1)[:, None], 1e-8), largest)
    quotient = tl.div_rn(x, scale)
    if INTEGER:
        found = libdevice.rint(quotient).to(tl.int8)  # halves to even, as torch.round
    else:
        found = tl.minimum(tl.maximum(quotient, -largest), largest).to(q_ptr.dtype.element_ty)
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
        INTEGER=not dtype.is_floating_point, ROWS=height, BLOCK=block, POLICY="evict_last" if LEAVES_LAST else "",
        num_warps=warps,
    )  # fmt: skip
    return q, scale
