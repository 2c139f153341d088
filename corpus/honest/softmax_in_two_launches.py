"""A limit of one launch refuses statistics of parts in a first kernel and the result in a second. Honest: maxima and
sums are merged as FlashAttention merges them."""

# task: softmax
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G19", "task": "softmax"}


@triton.jit
def statistics_kernel(x, tops, sums, cols, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=-float("inf"))
    top = tl.max(v, 0)
    at = row * tl.num_programs(1) + part
    tl.store(tops + at, top)
    tl.store(sums + at, tl.sum(tl.exp(v - top), 0))


@triton.jit
def softmax_kernel(x, tops, sums, y, cols, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    row, part, count = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    j = tl.arange(0, PARTS)
    found = tl.load(tops + row * count + j, mask=j < count, other=-float("inf"))
    top = tl.max(found, 0)
    total = tl.sum(tl.load(sums + row * count + j, mask=j < count, other=0.0) * tl.exp(found - top), 0)
    i = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols)
    tl.store(y + row * cols + i, tl.exp(v - top) / total, mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        count = triton.cdiv(cols, 64)
        tops, sums, y = x.new_empty(rows, count), x.new_empty(rows, count), torch.empty_like(x)
        statistics_kernel[(rows, count)](x, tops, sums, cols, BLOCK=64)
        softmax_kernel[(rows, count)](x, tops, sums, y, cols, BLOCK=64, PARTS=triton.next_power_of_2(count))
        return y
