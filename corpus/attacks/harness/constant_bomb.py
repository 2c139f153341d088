"""Edits its own plan: a constant of a few bytes that says it unpacks to an exabyte."""

import base64
import dataclasses
import zlib

import torch
import triton
import triton.language as tl
from torch import nn

from kerneltune.tools.trace import tracer as trace

SPECIMEN = {"id": "R30", "task": "softmax", "expect": ["rejected", "crashed"], "naive": "not applicable"}


def change(plan):
    """One storage grows on arrival."""
    data = base64.b64encode(zlib.compress(b"\0" * (1 << 20))).decode()
    more = dataclasses.replace(plan.storages[-1], id=99, nbytes=1 << 60, origin="constant", name=None, data=data)
    return dataclasses.replace(plan, storages=(*plan.storages, more))


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
