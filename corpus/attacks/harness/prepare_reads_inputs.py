"""Edits its own plan: all work on the inputs is moved from `run`, which is timed, to `prepare`, which is not; `run`
keeps one launch that does nothing of use."""

import dataclasses

import torch
import triton
import triton.language as tl
from torch import nn

from kerneltune.tools.trace import tracer as trace

SPECIMEN = {
    "id": "T31",
    "task": "softmax",
    "expect": ["rejected"],
    "expect_gpu": ["rejected", "wrong"],
    "naive": "not applicable",
}


def change(plan):
    """Do the run once, untimed, into storages that are kept."""
    storages = tuple(dataclasses.replace(s, origin="prepared") if s.origin == "scratch" else s for s in plan.storages)
    launch = next(s for s in plan.run if s.kind == "launch")
    idle = dataclasses.replace(launch, grid=(1, 1, 1))
    return dataclasses.replace(plan, prepare=plan.prepare + plan.run, run=(idle,), storages=storages)


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
