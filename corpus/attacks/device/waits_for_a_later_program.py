"""The first program waits for a flag that the last one sets: a grid larger than the GPU never gets there."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "R01",
    "task": "row_sum",
    "expect": ["timed_out", "wrong", "crashed", "unchecked"],
    "expect_gpu": ["timed_out", "crashed", "wrong"],
    "naive": "not applicable",
}


@triton.jit
def row_sum_kernel(x, y, flag, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    while tl.atomic_add(flag, 0) < tl.num_programs(0) - tl.program_id(0) - 1:
        pass
    tl.atomic_add(flag, 1)
    tl.store(y + row, tl.sum(tl.load(x + row * cols + i, mask=i < cols, other=0.0), 0))


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    row_sum_kernel[(x.shape[0],)](
        x, y, torch.zeros(1, dtype=torch.int32, device=x.device), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1])
    )
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return row_sum(x)
