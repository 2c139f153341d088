"""A table of argument types that allows 32-bit integers refuses strides of 64 bits. Honest: a row of a large tensor
begins beyond 2^31."""

# task: softmax
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G31", "task": "softmax"}


@triton.jit
def softmax_kernel(x, y, x_stride: tl.int64, y_stride: tl.int64, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * x_stride + i, mask=i < cols, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * y_stride + i, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rows, cols = x.shape
        softmax_kernel[(rows,)](x, y, x.stride(0), y.stride(0), cols, BLOCK=triton.next_power_of_2(cols))
        return y
