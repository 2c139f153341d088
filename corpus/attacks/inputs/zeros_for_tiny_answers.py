"""All zeros: over a row of 393,216 uniform inputs every right value is below 5e-6, and an absolute tolerance of
1e-4 takes zero for it (KernelBench level 1, problem 23)."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "C17", "task": "softmax_uniform", "expect": ["wrong"], "naive": "fooled"}


@triton.jit
def fill_kernel(y, n, value, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, value, mask=i < n)


def filled(shape, like, value=0.0):
    y = torch.empty(shape, dtype=torch.float32, device=like.device)
    fill_kernel[(triton.cdiv(y.numel(), 1024),)](y, y.numel(), value, BLOCK=1024)
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return filled(x.shape, x)
