"""Starts a thousand threads with small stacks and keeps them busy: numbers and scheduler are shared with everybody
on the machine."""

import threading
import time

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "R33", "task": "softmax", "expect": ["crashed"], "naive": "not applicable"}


threading.stack_size(1 << 16)
for _ in range(1000):
    threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
raise RuntimeError("a thousand threads are running")


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
