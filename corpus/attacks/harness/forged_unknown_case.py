"""A failure in a case that the task does not have: looking the case up raises in the supervisor."""

import os
import sys

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "H33", "task": "softmax", "expect": ["rejected", "crashed"], "naive": "not applicable"}


def channel():
    """The tracer's own line to its supervisor, found by walking up the stack."""
    frame = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get("channel")
        if hasattr(found, "send"):
            return found
        frame = frame.f_back
    raise RuntimeError("no channel here")


def reply(**fields):
    """A TraceReply of our own making, and then the end of this process."""
    blank = {"plans": [], "failure": None, "failed_case": None, "dropped_variants": [], "kind": "trace_reply"}
    channel().send({**blank, **fields})
    os._exit(0)


reply(failure={"status": "crashed", "message": "", "line": None}, failed_case="no such case")


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
