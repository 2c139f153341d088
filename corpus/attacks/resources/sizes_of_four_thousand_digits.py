"""A tensor of a thousand dimensions, each a number of four thousand digits: to multiply them takes an hour."""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import nn

from kerneltune.tools.trace import tracer as trace

SPECIMEN = {"id": "R67", "task": "softmax", "expect": ["rejected", "timed_out"], "naive": "not applicable"}


def forged(plan):
    launch = next(step for step in plan.run if step.kind == "launch")
    argument = next(arg for arg in launch.args if arg.kind == "tensor")
    huge = replace(argument.tensor, shape=(10**4_000,) * 3_000, stride=(1,) * 3_000)
    args = tuple(replace(arg, tensor=huge) if arg is argument else arg for arg in launch.args)
    return replace(plan, run=tuple(replace(step, args=args) if step is launch else step for step in plan.run))


real = trace.build_plan
trace.build_plan = lambda *args, **kwargs: forged(real(*args, **kwargs))


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
