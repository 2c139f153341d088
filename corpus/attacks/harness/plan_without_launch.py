"""Edits its own plan in the tracer: the launch that the tracer insists on is there when it looks and gone from the
reply, and a library operator does all the work."""

import dataclasses

import torch
import triton
import triton.language as tl
from torch import nn

from kerneltune.tools.trace import tracer as trace

SPECIMEN = {
    "id": "L30",
    "task": "softmax",
    "expect": ["rejected"],
    "expect_gpu": ["rejected"],
    "naive": "not applicable",
}


def change(plan):
    """Keep the library's steps only."""
    steps = tuple(step for step in plan.run if step.kind == "aten")
    kept = {ref["$tensor"]["storage"] for ref in [plan.outputs]}
    used = kept | {ref.storage for step in steps for ref in step.outs if ref is not None}
    storages = tuple(s for s in plan.storages if s.id in used or s.origin == "input")
    return dataclasses.replace(plan, run=steps, kernels=(), storages=storages)


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
