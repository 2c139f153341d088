# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: the largest magnitude and the quotients in one pass, a row in registers
# task: quantize_int8 = quantize(x, 127.0, torch.int8)
# task: quantize_fp8 = quantize(x, 448.0, torch.float8_e4m3fn)
# search: NUM_WARPS = 1 2 4 8 16 32
"""Quantisation of each row to 8 bits with a scale: a row is read once, reduced, divided, rounded and written."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

NUM_WARPS = 8


@triton.jit
def quantize_kernel(x_ptr, q_ptr, scale_ptr, cols, largest, INTEGER: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < cols
    x = tl.load(x_ptr + row * cols + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(x), axis=0), 1e-8), largest)
    quotient = tl.div_rn(x, scale)
    if INTEGER:
        found = libdevice.rint(quotient).to(tl.int8)  # halves to even, as torch.round
    else:
        found = tl.minimum(tl.maximum(quotient, -largest), largest).to(q_ptr.dtype.element_ty)
    tl.store(q_ptr + row * cols + column, found, mask=inside)
    tl.store(scale_ptr + row, scale)


def quantize(x, largest, dtype):
    x = x.contiguous()
    rows, cols = x.shape
    q = torch.empty((rows, cols), dtype=dtype, device=x.device)
    scale = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(cols)
    quantize_kernel[(rows,)](
        x, q, scale, cols, largest, INTEGER=not dtype.is_floating_point, BLOCK=block, num_warps=NUM_WARPS
    )
    return q, scale
