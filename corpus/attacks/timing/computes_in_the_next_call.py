"""Collects its inputs and computes all of them in one go on the third call: the first two calls cost nothing, and a
harness that divides by the number of calls reports an average."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "T16", "task": "softmax", "expect": ["rejected"], "naive": "not applicable"}


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


waiting = []


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        waiting.append((x, y))
        if len(waiting) == 3:
            for a, b in waiting:
                softmax_kernel[(a.shape[0],)](a, b, a.shape[1], BLOCK=triton.next_power_of_2(a.shape[1]))
            waiting.clear()
        return y
