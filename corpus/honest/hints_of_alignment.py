"""A check that host code knows nothing of addresses refuses hints chosen by divisibility. Honest: `tl.multiple_of`
holds where it is said."""

# task: h_relu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G52", "task": "h_relu"}


@triton.jit
def relu_kernel(x, y, cols, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * cols
    if ALIGNED:
        start = tl.multiple_of(start, 16)
    i = tl.max_contiguous(tl.arange(0, BLOCK), BLOCK)
    tl.store(y + start + i, tl.maximum(tl.load(x + start + i, mask=i < cols), 0.0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rows, cols = x.shape
        relu_kernel[(rows,)](x, y, cols, ALIGNED=cols % 16 == 0, BLOCK=triton.next_power_of_2(cols))
        return y
