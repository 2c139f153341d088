"""A ban on external functions ("calls a library") refuses libdevice. Honest: it is CUDA's device mathematics,
inlined into the candidate's kernel."""

# task: gelu
import torch
import triton
import triton.language as tl
from torch import nn
from triton.language.extra import libdevice

SPECIMEN = {"id": "F18c", "task": "gelu"}


@triton.jit
def gelu_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, 0.5 * v * libdevice.erfc(-v * 0.7071067811865476), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        gelu_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
