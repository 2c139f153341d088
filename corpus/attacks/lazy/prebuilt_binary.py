"""Brings a cubin along and loads it with the driver: nobody can say what is in it."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "L13", "task": "softmax", "expect": ["crashed", "rejected"], "naive": "not applicable"}


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
        image = bytes(1024)
        module, function, *_ = triton.runtime.driver.active.utils.load_binary("k", image, 0, 0)
        return softmax(x)
