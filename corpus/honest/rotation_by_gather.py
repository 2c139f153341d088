"""A check that a kernel reads each input once in order refuses `tl.gather` over a permuted axis. Honest: rotating a
row by its own amount is the task."""

# task: h_rotate
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F22g", "task": "h_rotate"}


@triton.jit
def rotate_kernel(x, by, y, cols: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=0.0)
    source = (i + tl.load(by + row)) % cols
    tl.store(y + row * cols + i, tl.gather(v, source.to(tl.int32), 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x, by):
        y = torch.empty_like(x)
        rotate_kernel[(x.shape[0],)](x, by, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
