"""Asks the compiler for the registers of a kernel again and again: each question is a compilation outside of the
jail that pays for it."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "R45", "task": "softmax", "expect": ["rejected", "timed_out"], "naive": "not applicable"}


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
        y = torch.empty_like(x)
        for size in range(6, 60):
            kernel = softmax_kernel.warmup(x, y, x.shape[1], BLOCK=256, num_stages=size, grid=(1,))
            kernel._init_handles()
            if kernel.n_regs < 0:
                return x
        return softmax(x)
