"""Each program adds to what the one before it stored, without waiting for it: right where programs run one after
another, or by luck."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "C23", "task": "cumsum", "expect": ["wrong"], "naive": "not applicable"}


@triton.jit
def chained_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(1).to(tl.int64) * cols
    v = tl.load(x + at + i, mask=i < cols, other=0.0)
    carry = tl.load(y + at + tl.program_id(0) * BLOCK - 1, mask=tl.program_id(0) > 0, other=0.0)
    tl.store(y + at + i, carry + tl.cumsum(v, 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        chained_kernel[(triton.cdiv(x.shape[1], 16), x.shape[0])](x, y, x.shape[1], BLOCK=16)
        return y
