"""A check that forward returns what a launch was given refuses an operator that mutates an argument. Honest:
`mutates_args` declares it, as torch asks."""

# task: row_sum
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G04", "task": "row_sum"}


@triton.jit
def row_sum_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(y + row, tl.sum(tl.load(x + row * cols + i, mask=i < cols, other=0.0), 0))


@torch.library.custom_op("honest_corpus::row_sum_into", mutates_args={"y"})
def row_sum_into(x: torch.Tensor, y: torch.Tensor) -> None:
    row_sum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))


class ModelNew(nn.Module):
    def forward(self, x):
        y = x.new_empty(x.shape[0])
        row_sum_into(x, y)
        return y
