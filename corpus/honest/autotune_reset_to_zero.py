"""A check that forwards clear no memory "behind the timer" refuses `reset_to_zero`. Honest: while configs are tried
an accumulator must start from zero each time, and forward itself clears it for the real call."""

# task: row_sum
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F11b", "task": "row_sum"}


@triton.autotune(
    configs=[triton.Config({"BLOCK": 32}, num_warps=1), triton.Config({"BLOCK": 64}, num_warps=2)],
    key=["cols"],
    reset_to_zero=["y"],
)
@triton.jit
def row_sum_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + row, tl.sum(tl.load(x + row * cols + i, mask=i < cols, other=0.0), 0))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = torch.zeros(rows, dtype=x.dtype, device=x.device)
        row_sum_kernel[lambda meta: (rows, triton.cdiv(cols, meta["BLOCK"]))](x, y, cols)
        return y
