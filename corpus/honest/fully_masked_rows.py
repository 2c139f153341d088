"""An isfinite check of outputs refuses softmax over rows that the mask leaves empty: they are NaN, in the reference
as well. Honest: exactly those rows are NaN."""

# task: h_empty_rows
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F14a", "task": "h_empty_rows"}


@triton.jit
def masked_softmax_kernel(x, mask, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    kept = tl.load(mask + at, mask=i < cols, other=0) != 0
    v = tl.where(kept, tl.load(x + at, mask=i < cols), -float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x, mask):
        y = torch.empty_like(x)
        rows, cols = x.shape
        masked_softmax_kernel[(rows,)](x, mask, y, cols, BLOCK=triton.next_power_of_2(cols))
        return y
