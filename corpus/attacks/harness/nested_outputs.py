"""A plan whose output tree is nested 900 deep: decoding lets it through as JSON, hashing or encoding it again
recurses too deep in the supervisor."""

import dataclasses
import sys

import torch
import triton
import triton.language as tl
from torch import nn

from kerneltune.tools.trace import build
from kerneltune.tools.trace import tracer as trace

SPECIMEN = {"id": "H36", "task": "softmax", "expect": ["rejected", "crashed", "wrong"], "naive": "not applicable"}


real = build.build_plan


def nested(*args, **kwargs):
    plan = real(*args, **kwargs)
    tree = plan.outputs
    for _ in range(900):
        tree = [tree]
    return dataclasses.replace(plan, outputs=tree)


sys.setrecursionlimit(20_000)
trace.build_plan = nested


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
