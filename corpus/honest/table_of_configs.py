"""A check for branches by shape refuses a table that chooses tile and warps. Honest: the same kernel for every shape,
and no shape of the task's is named."""

# task: row_sum
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G57", "task": "row_sum"}


@triton.jit
def row_sum_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(y + row, tl.sum(tl.load(x + row * cols + i, mask=i < cols, other=0.0), 0))


CONFIGS = ((256, {"num_warps": 1}), (2048, {"num_warps": 4}), (1 << 30, {"num_warps": 8}))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = x.new_empty(rows)
        options = next(options for most, options in CONFIGS if cols <= most)
        row_sum_kernel[(rows,)](x, y, cols, BLOCK=triton.next_power_of_2(cols), **options)
        return y
