# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: single pass: a whole row in registers, read once
# fits: rms_norm(x, weight, eps) = F.rms_norm(x, _, weight, eps) where x: ... C, weight: C<65537
# search: NUM_WARPS = 1 2 4 8 16 32
"""RMS normalisation over the last dimension, one program a row: the row is read once and stays in registers."""

import torch
import triton
import triton.language as tl

NUM_WARPS = 8


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, y_ptr, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < cols
    x = tl.load(x_ptr + row * cols + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps)
    tl.store(y_ptr + row * cols + column, x * scale * weight, mask=inside)


def rms_norm(x, weight, eps):
    x = x.contiguous()
    y = torch.empty_like(x)
    cols = x.shape[-1]
    block = triton.next_power_of_2(cols)
    grid = (x.numel() // cols,)
    rms_norm_kernel[grid](x, weight, y, cols, eps, BLOCK=block, num_warps=NUM_WARPS)
    return y
