"""GELU below -4 is stored as zero, where it is less than 0.0002: nothing beside the values of its row, and all of the
answer."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "Q41", "task": "gelu", "expect": ["wrong"], "naive": "not applicable"}


@triton.jit
def gelu_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    exact = 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476))
    tl.store(y + i, tl.where(v < -4.0, 0.0, exact), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        gelu_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
