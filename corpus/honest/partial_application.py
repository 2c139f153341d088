"""A scan of forward for a launch finds none: a `functools.partial` hides it. Honest: it only remembers the block
size."""

# task: gelu
import functools

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G59", "task": "gelu"}


@triton.jit
def gelu_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476)), mask=i < n)


def launched(kernel, block, x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), BLOCK=block)
    return y


gelu = functools.partial(launched, gelu_kernel, 1024)


class ModelNew(nn.Module):
    def forward(self, x):
        return gelu(x)
