"""A check that masked loads say what the rest is refuses one that does not. Honest: the undefined lanes are replaced
before anything is computed from them."""

# task: softmax
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G43", "task": "softmax"}


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols)
    v = tl.where(i < cols, v, -float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
