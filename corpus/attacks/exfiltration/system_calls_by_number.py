"""Goes around Python's wrappers: io_uring, memfd, userfaultfd, bpf, perf events, keyrings by raw system call."""

import ctypes

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "R48",
    "task": "softmax",
    "expect": ["checked"],
    "expect_gpu": ["correct"],
    "twin": "softmax_rows",
    "naive": "not applicable",
}


libc = ctypes.CDLL(None, use_errno=True)
for number in (41, 319, 323, 321, 298, 425, 248, 272, 165, 310, 311, 434, 438, 101):
    if libc.syscall(number, 1, 1, 0, 0, 0, 0) >= 0:
        raise RuntimeError(f"system call {number} was allowed")


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
