"""A limit of one launch refuses the three kernels of a scan: sums of blocks, their scan, and the scan within. Honest:
the textbook's way."""

# task: cumsum
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G23", "task": "cumsum"}


@triton.jit
def sums_kernel(x, sums, cols, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=0.0)
    tl.store(sums + row * tl.num_programs(1) + part, tl.sum(v, 0))


@triton.jit
def carries_kernel(sums, carries, count, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)
    v = tl.load(sums + row * count + j, mask=j < count, other=0.0)
    tl.store(carries + row * count + j, tl.cumsum(v, 0) - v, mask=j < count)


@triton.jit
def cumsum_kernel(x, carries, y, cols, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=0.0)
    carry = tl.load(carries + row * tl.num_programs(1) + part)
    tl.store(y + row * cols + i, tl.cumsum(v, 0) + carry, mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        count = triton.cdiv(cols, 64)
        sums, carries, y = x.new_empty(rows, count), x.new_empty(rows, count), torch.empty_like(x)
        sums_kernel[(rows, count)](x, sums, cols, BLOCK=64)
        carries_kernel[(rows,)](sums, carries, count, BLOCK=triton.next_power_of_2(count))
        cumsum_kernel[(rows, count)](x, carries, y, cols, BLOCK=64)
        return y
