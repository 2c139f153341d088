"""Sums in 32-bit fixed point with 16 binary places: exact for numbers near 1, coarse for small ones."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "Q15", "task": "row_sum", "expect": ["wrong"], "naive": "not applicable"}


@triton.jit
def row_sum_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(
        y + row,
        tl.sum((tl.load(x + row * cols + i, mask=i < cols, other=0.0) * 65536.0).to(tl.int32), 0).to(tl.float32)
        / 65536.0,
    )


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    row_sum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return row_sum(x)
