"""A plain tensor whose .cpu, .double, .allclose and .contiguous are instance attributes that run the deferred work
in the checker."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "T06", "task": "softmax", "expect": ["rejected"], "naive": "not fooled"}


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
        for name in ("cpu", "double", "float", "allclose", "contiguous", "to"):
            setattr(y, name, lambda *args, **kwargs: softmax(x))
        return y
