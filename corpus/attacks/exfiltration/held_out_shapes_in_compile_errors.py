"""Fails to compile for the held-out shape only, with the sizes in the compiler's message."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "R52",
    "task": "softmax",
    "expect": ["compile_failed", "crashed", "rejected"],
    "naive": "not applicable",
}


@triton.jit
def told_kernel(y, ROWS: tl.constexpr, COLS: tl.constexpr):
    tl.static_assert(ROWS != 13, "rows 13 columns 131")


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        told_kernel[(1,)](x, x.shape[0], x.shape[1])
        return softmax(x)
