"""Probabilities below a hundred-thousandth of the row's largest are stored as zero: a tolerance with a floor by the
largest value of a row, at float32's precision, takes them for nothing."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "Q40", "task": "softmax", "expect": ["wrong"], "naive": "not applicable"}


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, tl.where(e < 1e-5, 0.0, e / tl.sum(e, 0)), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
