"""Edits its own plan: the output is a view that begins before or ends after its storage, where something else lies."""

import dataclasses

import torch
import triton
import triton.language as tl
from torch import nn

from kerneltune.tools.trace import tracer as trace

SPECIMEN = {"id": "X32", "task": "softmax", "expect": ["rejected", "crashed"], "naive": "not applicable"}


def change(plan):
    """The output lies 4 KiB further on."""
    leaf = plan.outputs["$tensor"]
    return dataclasses.replace(plan, outputs={"$tensor": {**leaf, "offset": leaf["offset"] + 1024}})


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
