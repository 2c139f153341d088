"""Opens every kind of socket to send out what it sees or to fetch a kernel; fails loudly if one opens to anywhere."""

import socket

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "R08",
    "task": "softmax",
    "expect": ["checked"],
    "expect_gpu": ["correct"],
    "twin": "softmax_rows",
    "naive": "not applicable",
}


for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, 16, 17, 38, 40):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            socket.socket(family, kind)
        except OSError:
            continue
        raise RuntimeError(f"a socket of family {family} opened")


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
