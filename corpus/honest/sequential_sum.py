"""A comparison with a multiple of the library's own error refuses one running sum in float32: its rounding grows
with the length, the library's pairwise sum hardly. Honest: it is float32 arithmetic in the order of the loop."""

# task: row_sum
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F03a", "task": "row_sum"}


@triton.jit
def row_sum_kernel(x, y, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in range(cols):
        total += tl.load(x + row * cols + j, mask=row < rows, other=0.0)
    tl.store(y + row, total, mask=row < rows)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = torch.empty(rows, dtype=x.dtype, device=x.device)
        row_sum_kernel[(triton.cdiv(rows, 64),)](x, y, rows, cols, BLOCK=64)
        return y
