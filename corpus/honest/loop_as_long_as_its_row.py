"""A check that all programs do the same work refuses a loop whose length is loaded. Honest: the task's rows end
early, and what lies behind them is not read."""

# task: h_lengths
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G34", "task": "h_lengths"}


@triton.jit
def ragged_kernel(x, lengths, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row).to(tl.int32)
    total = 0.0
    for start in range(0, length, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x + row * cols + i, mask=i < length, other=0.0), 0)
    tl.store(y + row, total)


class ModelNew(nn.Module):
    def forward(self, x, lengths):
        y = x.new_empty(x.shape[0])
        ragged_kernel[(x.shape[0],)](x, lengths, y, x.shape[1], BLOCK=64)
        return y
