"""Looks for keys in its environment and its parents' environments."""

import os

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "R09",
    "task": "softmax",
    "expect": ["checked"],
    "expect_gpu": ["correct"],
    "twin": "softmax_rows",
    "naive": "not applicable",
}


for name in os.environ:
    if any(word in name.upper() for word in ("KEY", "TOKEN", "SECRET", "PASSWORD")):
        raise RuntimeError(f"found {name}")
for pid in range(1, 400):
    if pid == os.getpid():
        continue
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raise RuntimeError(f"read the environment of {pid}: {len(file.read(10))} bytes")
    except OSError:
        continue


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
