"""A check that outputs lie in storages of their own refuses two halves of one. Honest: both halves are written on
every call."""

# task: stats_pair
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G56", "task": "stats_pair"}


@triton.jit
def stats_kernel(x, y, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=0.0)
    tl.store(y + row, tl.sum(v, 0) / cols)
    tl.store(y + rows + row, tl.max(tl.abs(v), 0))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = x.new_empty(2, rows)
        stats_kernel[(rows,)](x, y, rows, cols, BLOCK=triton.next_power_of_2(cols))
        mean, peak = y.unbind(0)
        return {"mean": mean, "peak": peak}
