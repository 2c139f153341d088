"""Edits its own plan: the library operators that do the work are marked as glue, so that the report of library time
does not name them."""

import dataclasses

import torch
import triton
import triton.language as tl
from torch import nn

from kerneltune.tools.trace import tracer as trace

SPECIMEN = {
    "id": "L31",
    "task": "softmax",
    "expect": ["rejected"],
    "expect_gpu": ["rejected"],
    "naive": "not applicable",
}


def change(plan):
    """Nothing here is library work any more."""
    run = tuple(dataclasses.replace(s, library=False) if s.kind == "aten" else s for s in plan.run)
    return dataclasses.replace(plan, run=run)


real = trace.build_plan


def forged(*args, **kwargs):
    return change(real(*args, **kwargs))


trace.build_plan = forged


@triton.jit
def copy_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


def copied(x):
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return copied(torch.softmax(x, dim=-1))
