"""Cuts values to their upper 12 bits, so that value and column pack into one word: near ties go to the wrong
column."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "Q16", "task": "argmax", "expect": ["wrong"], "naive": "not applicable"}


@triton.jit
def argmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=float("-inf"))
    tl.store(y + row, tl.argmax((v.to(tl.int32, bitcast=True) & -1048576).to(tl.float32, bitcast=True), 0).to(tl.int64))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
        argmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
