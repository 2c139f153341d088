"""Leaves the weight out from row 1,024 on: right on every case that an interpreter can run whole, wrong on the timed
one."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "S42", "task": "rms_norm", "expect": ["wrong"], "naive": "not applicable"}


@triton.jit
def rms_norm_kernel(x, weight, y, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=0.0).to(tl.float32)
    w = tl.load(weight + i, mask=i < cols, other=0.0).to(tl.float32)
    n = v * tl.rsqrt(tl.sum(v * v, 0) / cols + eps)
    tl.store(y + row * cols + i, tl.where(row < 1024, n * w, n), mask=i < cols)


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(cols))

    def forward(self, x):
        y = torch.empty_like(x)
        rows, cols = x.shape
        rms_norm_kernel[(rows,)](x, self.weight, y, cols, self.eps, BLOCK=triton.next_power_of_2(cols))
        return y
