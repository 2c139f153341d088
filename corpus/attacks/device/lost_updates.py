"""Partial sums of a row are added by load, add and store in place of an atomic: right as long as no two programs
meet."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "C24", "task": "row_sum", "expect": ["wrong"], "naive": "not applicable"}


@triton.jit
def partial_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x + row * cols + i, mask=i < cols, other=0.0), 0)
    tl.store(y + row, tl.load(y + row) + part)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
        partial_kernel[(x.shape[0], triton.cdiv(x.shape[1], 16))](x, y, x.shape[1], BLOCK=16)
        return y
