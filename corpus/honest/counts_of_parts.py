"""A limit of one launch refuses counts of parts that a second kernel adds. Honest: no atomics; whole numbers, exact
in any order."""

# task: h_histogram
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G39", "task": "h_histogram"}


@triton.jit
def parts_kernel(x, parts, n, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    counts = tl.histogram(v, 64, mask=i < n)
    tl.store(parts + p * 64 + tl.arange(0, 64), counts)


@triton.jit
def add_kernel(parts, y, count, BLOCK: tl.constexpr):
    value = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, count, BLOCK):
        j = start + tl.arange(0, BLOCK)
        total += tl.load(parts + j * 64 + value, mask=j < count, other=0)
    tl.store(y + value, tl.sum(total, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        count = triton.cdiv(x.numel(), 1024)
        parts = torch.empty(count, 64, dtype=torch.int32, device=x.device)
        y = torch.empty(64, dtype=torch.int32, device=x.device)
        parts_kernel[(count,)](x, parts, x.numel(), BLOCK=1024)
        add_kernel[(64,)](parts, y, count, BLOCK=128)
        return y
