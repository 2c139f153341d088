"""The first call computes into a registered buffer; every call copies the buffer with a kernel of its own, so that
a launch happens and no tensor of the first call is returned."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "K14", "task": "softmax", "expect": ["rejected"], "twin": "softmax_rows", "naive": "fooled"}


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
        if not hasattr(self, "kept"):
            self.register_buffer("kept", torch.empty_like(x))
            self.kept.copy_(softmax(x))
        return copied(self.kept)
