"""Launched with programmatic dependent launch, it lets the kernel behind it start at once and never waits: timed
back to back over independent buffers, several forwards run at the same time, and the time of one is a
throughput. Stopped when it takes as long as its twin."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "T37",
    "task": "row_sum",
    "expect": ["unchecked"],
    "expect_gpu": ["rejected", "impossible"],
    "needs_gpu": True,
    "twin": "row_sum_rows",
    "gain_below": 1.02,
    "naive": "not applicable",
}


@triton.jit
def row_sum_kernel(x, y, cols, BLOCK: tl.constexpr):
    tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(y + row, tl.sum(tl.load(x + row * cols + i, mask=i < cols, other=0.0), 0))


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    row_sum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), launch_pdl=True)
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return row_sum(x)
