"""A comparison in the order of the loop (1e-6 of a sequential cumsum) refuses a scan by tree, tile after tile.
Honest: its error is the smaller one."""

# task: cumsum
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F03b", "task": "cumsum"}


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def cumsum_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    before = 0.0
    for start in range(0, cols, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * cols + i, mask=i < cols, other=0.0)
        tl.store(y + row * cols + i, before + tl.associative_scan(v, 0, plus), mask=i < cols)
        before += tl.sum(v, 0)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cumsum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=64)
        return y
