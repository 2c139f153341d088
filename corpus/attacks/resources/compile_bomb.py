"""A few lines of Triton that become hundreds of thousands of instructions: a block of 2^19 elements on one warp."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "R37", "task": "softmax", "expect": ["timed_out", "compile_failed"], "naive": "not applicable"}


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=1 << 19, num_warps=1)
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return softmax(x)
