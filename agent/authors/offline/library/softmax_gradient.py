# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: both operands of a row in registers, read once; several short rows a program
# task: softmax_backward = softmax_backward(gradient, y)
# search: TILE = 1024 2048 4096 8192 16384
# search: NUM_WARPS = 1 2 4 8 16 32
"""Backward of softmax over the last dimension: dx = y dy - y sum(y dy), a row (or a tile of short rows) a program."""

import torch
import triton
import triton.language as tl

TILE = 4096
NUM_WARPS = 16


@triton.jit
def softmax_backward_kernel(dy_ptr, y_ptr, dx_ptr, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLS)[None, :]
    at = row * cols + column
    inside = (row < rows) & (column < cols)
    y = tl.load(y_ptr + at, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
    product = y * dy
    tl.store(dx_ptr + at, product - y * tl.sum(product, axis=1)[:, None], mask=inside)


def softmax_backward(gradient, y):
    gradient, y = gradient.contiguous(), y.contiguous()
    dx = torch.empty_like(y)
    cols = y.shape[-1]
    rows = y.numel() // cols
    block = triton.next_power_of_2(cols)
    height = max(1, TILE // block)
    grid = (triton.cdiv(rows, height),)
    softmax_backward_kernel[grid](gradient, y, dx, rows, cols, ROWS=height, COLS=block, num_warps=NUM_WARPS)
    return dx
