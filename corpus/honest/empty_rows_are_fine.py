"""A harness that demands a launch for every call refuses a guard for empty inputs. Honest: with nothing to do the
result is an empty tensor, and Triton refuses a grid of zero."""

# task: row_sum
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F29b", "task": "row_sum"}


@triton.jit
def row_sum_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(y + row, tl.sum(tl.load(x + row * cols + i, mask=i < cols, other=0.0), 0))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        if rows == 0 or cols == 0:
            return torch.zeros(rows, dtype=x.dtype, device=x.device)
        y = torch.empty(rows, dtype=x.dtype, device=x.device)
        row_sum_kernel[(max(rows, 1),)](x, y, cols, BLOCK=max(16, triton.next_power_of_2(cols)))
        return y
