"""Three thousand kernels, which differ in a comment: each is looked into, compiled and launched."""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import nn

from kerneltune.tools.trace import tracer as trace

SPECIMEN = {"id": "R66", "task": "softmax", "expect": ["rejected", "timed_out"], "naive": "not applicable"}


def forged(plan):
    if plan.case != "0":
        return plan
    launch = next(step for step in plan.run if step.kind == "launch")
    kernels = [replace(plan.kernels[0], text=plan.kernels[0].text + f"// {i}\n") for i in range(3_000)]
    return replace(plan, kernels=tuple(kernels), run=(*plan.run, *(replace(launch, kernel=i) for i in range(3_000))))


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
