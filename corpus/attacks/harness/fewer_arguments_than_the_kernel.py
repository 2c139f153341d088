"""Edits its own plan: the launch passes fewer arguments than the kernel takes, and the driver reads the rest from
whatever lies behind them."""

import dataclasses

import torch
import triton
import triton.language as tl
from torch import nn

from kerneltune.tools.trace import tracer as trace

SPECIMEN = {"id": "X34", "task": "softmax", "expect": ["rejected", "crashed"], "naive": "not applicable"}


def change(plan):
    """Drop the last argument from kernel and launch alike."""
    kernels = tuple(dataclasses.replace(k, signature=k.signature[:-1]) for k in plan.kernels)
    run = tuple(dataclasses.replace(s, args=s.args[:-1]) if s.kind == "launch" else s for s in plan.run)
    return dataclasses.replace(plan, kernels=kernels, run=run)


real = trace.build_plan


def forged(*args, **kwargs):
    return change(real(*args, **kwargs))


trace.build_plan = forged


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return softmax(x)
