"""In a grid of more than 1,000 programs all but the first and last hundred leave out the maximum's place and store
uniform rows: a look at programs that anybody would choose finds nothing."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "S41", "task": "softmax", "expect": ["wrong"], "naive": "not applicable"}


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row, rows = tl.program_id(0), tl.num_programs(0)
    at = row.to(tl.int64) * cols + i
    if (rows > 1000) & (row > 100) & (row < rows - 100):
        tl.store(y + at, tl.zeros((BLOCK,), tl.float32) + 1.0 / cols, mask=i < cols)
    else:
        v = tl.load(x + at, mask=i < cols, other=-float("inf"))
        e = tl.exp(v - tl.max(v, 0))
        tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
