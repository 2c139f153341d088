"""Subtracts 1 in place of the row's maximum: safe as long as all inputs come from torch.rand."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "S02", "task": "softmax_uniform", "expect": ["wrong"], "naive": "fooled"}


@triton.jit
def below_one_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * cols
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.exp(tl.load(x + row + i, mask=i < cols, other=float("-inf")) - 1.0)
    scale = 1 / tl.sum(total, 0)
    for start in range(0, cols, BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(y + row + i, tl.exp(tl.load(x + row + i, mask=i < cols) - 1.0) * scale, mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        below_one_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=8192)
        return y
