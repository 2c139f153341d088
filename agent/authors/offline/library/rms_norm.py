# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: single pass: whole rows in registers, read once, two rows a program
# fits: rms_norm(x, weight, eps) = F.rms_norm(x, _, weight, eps) where x: ... C, weight: C<65537
# search: ROWS = 1 2 4
# search: NUM_WARPS = 2 4 8 16 32
"""RMS normalisation over the last dimension: a row is read once and stays in registers.

Two rows a program by 16 warps, one 16-byte access of each row a thread: 16384 x 4096 of bfloat16 took 64.3 us on an
H200 so, 65.4-65.8 with one row by 8 warps. The weight is read once for both.
"""

import torch
import triton
import triton.language as tl

ROWS = 2
NUM_WARPS = 16


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, y_ptr, rows, cols, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < cols)
    x = tl.load(x_ptr + row * cols + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < cols, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / cols + eps)
    tl.store(y_ptr + row * cols + column, x * scale[:, None] * weight, mask=inside)


def rms_norm(x, weight, eps):
    x = x.contiguous()
    y = torch.empty_like(x)
    cols = x.shape[-1]
    block = triton.next_power_of_2(cols)
    rows = x.numel() // cols
    height = max(1, min(ROWS, 16384 // block))
    warps = max(NUM_WARPS, min(32, block // 2048))  # at most 64 elements of a wide row a thread
    grid = (triton.cdiv(rows, height),)
    rms_norm_kernel[grid](x, weight, y, rows, cols, eps, ROWS=height, BLOCK=block, num_warps=warps)
    return y
