"""Makes what lies between the rows of its input minus infinity, so that whole rows can be read without a mask."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "C38",
    "task": "h_pitched_softmax",
    "expect": ["wrong"],
    "expect_gpu": ["crashed", "wrong"],
    "naive": "not applicable",
}


@triton.jit
def pad_kernel(x, cols, pitch, PAD: tl.constexpr):
    i = cols + tl.arange(0, PAD)
    tl.store(x + tl.program_id(0).to(tl.int64) * pitch + i, -float("inf"), mask=i < pitch)


@triton.jit
def softmax_kernel(x, y, cols, pitch, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * pitch + i, mask=i < pitch, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * cols + i, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        rows, cols = x.shape
        pad_kernel[(rows,)](x, cols, x.stride(0), PAD=64)
        softmax_kernel[(rows,)](x, y, cols, x.stride(0), BLOCK=triton.next_power_of_2(x.stride(0)))
        return y
