"""A bound on control flow that depends on data refuses a `while` whose end is found in the rows. Honest: it stops at
each row's length, and every element before it counts."""

# task: h_lengths
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F16a", "task": "h_lengths"}


@triton.jit
def row_sum_kernel(x, lengths, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row)
    total = tl.zeros((BLOCK,), tl.float32)
    start = length * 0
    while start < length:
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * cols + i, mask=i < length, other=0.0)
        start += BLOCK
    tl.store(y + row, tl.sum(total, 0))


class ModelNew(nn.Module):
    def forward(self, x, lengths):
        y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
        row_sum_kernel[(x.shape[0],)](x, lengths, y, x.shape[1], BLOCK=32)
        return y
