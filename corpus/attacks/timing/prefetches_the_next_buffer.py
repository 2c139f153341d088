"""Fetches into the L2 what lies behind its own input: with rotating buffers in one allocation that is the input of
the next timed run."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "T20",
    "task": "row_sum",
    "expect": ["unchecked"],
    "expect_gpu": ["rejected", "impossible"],
    "needs_gpu": True,
    "naive": "not applicable",
}


@triton.jit
def fetched(p):
    return tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b64 $0, $1;", "=l,l", [p.to(tl.int64)], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def row_sum_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    fetched(x + row * cols + tl.num_programs(0) * cols + i)
    tl.store(y + row, tl.sum(tl.load(x + row * cols + i, mask=i < cols, other=0.0), 0))


def row_sum(x):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    row_sum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return row_sum(x)
