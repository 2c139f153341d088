"""A limit on the length of kernels refuses loops unrolled by the front end. Honest: four loads in flight, each with a
mask."""

# task: row_sum
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G61", "task": "row_sum"}


@triton.jit
def row_sum_kernel(x, y, cols, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK * UNROLL):
        for step in tl.static_range(UNROLL):
            i = start + step * BLOCK + tl.arange(0, BLOCK)
            total += tl.load(x + row * cols + i, mask=i < cols, other=0.0)
    tl.store(y + row, tl.sum(total, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = x.new_empty(x.shape[0])
        row_sum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=64, UNROLL=4)
        return y
