"""Computes the first eight rows and repeats them for the rest."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "C33", "task": "softmax", "expect": ["wrong"], "naive": "not fooled"}


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64)
    at = row * cols + i
    v = tl.load(x + row % 8 * cols + i, mask=i < cols, other=float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return softmax(x)
