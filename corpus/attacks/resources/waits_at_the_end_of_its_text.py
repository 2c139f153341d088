"""Ten thousand launches that may begin early, of a kernel of 7 MB that waits in its last line, a comment: who looks for
the wait once a launch reads 70 GB."""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import nn

from kerneltune.tools.trace import tracer as trace

SPECIMEN = {"id": "R63", "task": "softmax", "expect": ["rejected", "timed_out"], "naive": "not applicable"}


def forged(plan):
    if plan.case != "0":
        return plan
    (kernel,) = plan.kernels
    long = replace(kernel, text=kernel.text + "// nothing to see here\n" * 300_000 + "// griddepcontrol.wait\n")
    launch = next(step for step in plan.run if step.kind == "launch")
    return replace(plan, kernels=(long,), run=(*plan.run, *[replace(launch, pdl=True)] * 9_990))


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
