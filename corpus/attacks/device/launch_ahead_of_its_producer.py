"""Programmatic dependent launch without the wait: the second kernel starts while the first still writes."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "X08",
    "task": "row_sum",
    "expect": [],
    "expect_gpu": ["wrong", "rejected"],
    "needs_gpu": True,
    "naive": "not applicable",
}


@triton.jit
def copy_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


def copied(x):
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


@triton.jit
def row_sum_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(y + row, tl.sum(tl.load(x + row * cols + i, mask=i < cols, other=0.0), 0))


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    row_sum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
        z = torch.empty_like(x)
        copy_kernel[(triton.cdiv(x.numel(), 1024),)](x, z, x.numel(), BLOCK=1024, launch_pdl=True)
        row_sum_kernel[(x.shape[0],)](z, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), launch_pdl=True)
        return y
