"""Edits its own plan: a launch with a grid of 0 counts as a launch of its own and runs nothing, while torch
computes."""

import dataclasses

import torch
import triton
import triton.language as tl
from torch import nn

from kerneltune.tools.trace import tracer as trace

SPECIMEN = {
    "id": "L32",
    "task": "softmax",
    "expect": ["rejected"],
    "expect_gpu": ["rejected"],
    "naive": "not applicable",
}


def change(plan):
    """Every launch over an empty grid."""
    run = tuple(dataclasses.replace(s, grid=(0, 1, 1)) if s.kind == "launch" else s for s in plan.run)
    return dataclasses.replace(plan, run=run)


real = trace.build_plan


def forged(*args, **kwargs):
    return change(real(*args, **kwargs))


trace.build_plan = forged


@triton.jit
def fill_kernel(y, n, value, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, value, mask=i < n)


def filled(shape, like, value=0.0):
    y = torch.empty(shape, dtype=torch.float32, device=like.device)
    fill_kernel[(triton.cdiv(y.numel(), 1024),)](y, y.numel(), value, BLOCK=1024)
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        filled((1,), x)
        return torch.softmax(x, dim=-1)
