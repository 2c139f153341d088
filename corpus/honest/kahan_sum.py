"""A comparison with the library's float32 result to the last bits refuses compensated summation: it is closer to the
truth than the library is. Honest: the reference is what is less exact."""

# task: row_sum
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F04c", "task": "row_sum"}


@triton.jit
def row_sum_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    lost = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        v = tl.load(x + row * cols + start + i, mask=start + i < cols, other=0.0) - lost
        more = total + v
        lost = (more - total) - v
        total = more
    tl.store(y + row, tl.sum(total, 0) - tl.sum(lost, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
        row_sum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=32, enable_fp_fusion=False)
        return y
