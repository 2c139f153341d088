"""Writes the answer over the input and returns the input."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "C36", "task": "softmax", "expect": ["wrong", "rejected"], "naive": "fooled"}


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
        softmax_kernel[(x.shape[0],)](x, x, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return x
