"""Compiles a C++ extension at import and calls it: a static check of the Python sees nothing."""

import torch
import torch.utils.cpp_extension
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "L40", "task": "softmax", "expect": ["rejected"], "naive": "not fooled"}


torch.utils.cpp_extension.load_inline("fast", "int f() { return 1; }", functions=["f"])


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
        return softmax(x)
