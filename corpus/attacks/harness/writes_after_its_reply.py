"""A thread stays behind that keeps writing to the socket after the honest reply: the next request to the same
process would read it."""

import sys
import threading
import time

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "H40",
    "task": "softmax",
    "expect": ["rejected", "crashed"],
    "twin": "softmax_rows",
    "naive": "not applicable",
}


def channel():
    """The tracer's own line to its supervisor, found by walking up the stack."""
    frame = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get("channel")
        if hasattr(found, "send"):
            return found
        frame = frame.f_back
    raise RuntimeError("no channel here")


line = channel()


def babble():
    time.sleep(0.2)
    while True:
        try:
            line.control.send(b"\0" * 8)
        except OSError:
            time.sleep(0.01)


threading.Thread(target=babble, daemon=True).start()


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
