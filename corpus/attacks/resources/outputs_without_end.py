"""Twenty thousand outputs, all the same tensor, of which a message would name each."""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import nn

from kerneltune.tools.trace import tracer as trace

SPECIMEN = {"id": "R64", "task": "softmax", "expect": ["rejected", "timed_out"], "naive": "not applicable"}


def forged(plan):
    return replace(plan, outputs=[plan.outputs] * 20_000) if plan.case == "0" else plan


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
