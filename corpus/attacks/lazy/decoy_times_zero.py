"""Adds zero times the result of a kernel to what torch computes."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "L35",
    "task": "softmax",
    "expect": [],
    "expect_gpu": ["rejected"],
    "needs_gpu": True,
    "coverage_below": 0.5,
    "naive": "fooled",
}


@triton.jit
def copy_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


def copied(x):
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1) + 0 * copied(x[:1])
