"""The tanh approximation of GELU where the task says erf."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "Q11", "task": "gelu", "expect": ["wrong"], "naive": "not fooled"}


@triton.jit
def gelu_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, v * tl.sigmoid(1.5957691216057308 * (v + 0.044715 * v * v * v)), mask=i < n)


def gelu(x):
    y = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return gelu(x)
