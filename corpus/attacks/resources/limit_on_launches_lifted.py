"""Lifts the recorder's own limit on launches, then launches a hundred thousand times."""

import torch
import triton
import triton.language as tl
from torch import nn

from kerneltune.tools.trace import recorder as kernels

SPECIMEN = {"id": "R41", "task": "softmax", "expect": ["rejected", "timed_out"], "naive": "not applicable"}


kernels.MOST_STEPS = 1 << 60


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
        for _ in range(100_000):
            y = softmax(x)
        return y
