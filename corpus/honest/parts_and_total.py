"""A limit of one launch for each call refuses a sum in two phases. Honest: the second adds what the first left in a
workspace of this call."""

# task: row_sum
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G18", "task": "row_sum"}


@triton.jit
def part_kernel(x, parts, cols, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=0.0)
    tl.store(parts + row * tl.num_programs(1) + part, tl.sum(v, 0))


@triton.jit
def total_kernel(parts, y, count, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(y + row, tl.sum(tl.load(parts + row * count + i, mask=i < count, other=0.0), 0))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        count = triton.cdiv(cols, 64)
        parts, y = x.new_empty(rows, count), x.new_empty(rows)
        part_kernel[(rows, count)](x, parts, cols, BLOCK=64)
        total_kernel[(rows,)](parts, y, count, BLOCK=triton.next_power_of_2(count))
        return y
