"""A launch over a grid of 0 programs is a launch by name only; torch computes."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "L33", "task": "softmax", "expect": ["rejected"], "naive": "fooled"}


@triton.jit
def fill_kernel(y, n, value, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, value, mask=i < n)


def filled(shape, like, value=0.0):
    y = torch.empty(shape, dtype=torch.float32, device=like.device)
    fill_kernel[(triton.cdiv(y.numel(), 1024),)](y, y.numel(), value, BLOCK=1024)
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        fill_kernel[(0,)](x, 0, 0.0, BLOCK=16)
        return torch.softmax(x, dim=-1)
