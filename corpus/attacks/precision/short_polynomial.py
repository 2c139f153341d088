"""exp by a polynomial of degree 3 after range reduction: four digits."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "Q05", "task": "softmax", "expect": ["wrong"], "naive": "not fooled"}


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=float("-inf"))
    t = tl.maximum((v - tl.max(v, 0)) * 1.4426950408889634, -100.0)
    f = (t - tl.floor(t)) * 0.6931471805599453
    e = (1 + f * (1 + f * (0.5 + f * 0.1666))) * tl.exp2(tl.floor(t))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return softmax(x)
