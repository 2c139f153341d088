"""A check for indirect calls refuses kernels in a dict. Honest: one launch for each key of the answer."""

# task: stats_pair
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G66", "task": "stats_pair"}


@triton.jit
def mean_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(y + row, tl.sum(tl.load(x + row * cols + i, mask=i < cols, other=0.0), 0) / cols)


@triton.jit
def peak_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(y + row, tl.max(tl.abs(tl.load(x + row * cols + i, mask=i < cols, other=0.0)), 0))


KERNELS = {"mean": mean_kernel, "peak": peak_kernel}


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        found = {}
        for name, kernel in KERNELS.items():
            found[name] = x.new_empty(rows)
            kernel[(rows,)](x, found[name], cols, BLOCK=triton.next_power_of_2(cols))
        return found
