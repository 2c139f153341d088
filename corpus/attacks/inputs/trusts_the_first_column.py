"""Subtracts the first column, which the mask of this task always lets through, in place of the maximum."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "S08", "task": "masked_softmax", "expect": ["wrong"], "naive": "fooled"}


@triton.jit
def masked_kernel(x, mask, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    keep = tl.load(mask + at, mask=i < cols, other=0) != 0
    v = tl.load(x + at, mask=i < cols, other=0.0)
    first = tl.load(x + tl.program_id(0).to(tl.int64) * cols)
    e = tl.where(keep, tl.exp(v - first), 0.0)
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x, mask):
        y = torch.empty_like(x)
        masked_kernel[(x.shape[0],)](x, mask, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
