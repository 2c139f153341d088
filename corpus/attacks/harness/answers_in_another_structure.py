"""The right tensors in another structure: a tuple where the reference returns a dict, so that a flattened
comparison agrees."""

import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "C29", "task": "stats_pair", "expect": ["wrong"], "naive": "not applicable"}


@triton.jit
def stats_kernel(x, mean, peak, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=0.0)
    tl.store(mean + row, tl.sum(v, 0) / cols)
    tl.store(peak + row, tl.max(tl.abs(v), 0))


class ModelNew(nn.Module):
    def forward(self, x):
        mean, peak = x.new_empty(x.shape[0]), x.new_empty(x.shape[0])
        stats_kernel[(x.shape[0],)](x, mean, peak, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return mean, peak
