"""A check that outputs share no storage refuses two results that are views of one buffer, strided besides. Honest:
the values are what was asked for, and the buffer is this call's."""

# task: stats_pair
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F12b", "task": "stats_pair"}


@triton.jit
def stats_kernel(x, both, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=0.0)
    tl.store(both + 2 * row, tl.sum(v, 0) / cols)
    tl.store(both + 2 * row + 1, tl.max(tl.abs(v), 0))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        both = torch.empty((rows, 2), dtype=x.dtype, device=x.device)
        stats_kernel[(rows,)](x, both, cols, BLOCK=triton.next_power_of_2(cols))
        return {"mean": both[:, 0], "peak": both[:, 1]}
