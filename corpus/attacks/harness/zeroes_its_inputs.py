"""Overwrites its inputs with zeros and answers for zeros: a harness that computes the reference afterwards agrees."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "C10", "task": "row_sum", "expect": ["wrong"], "naive": "not fooled"}


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
        fill_kernel[(triton.cdiv(x.numel(), 1024),)](x, x.numel(), 0.0, BLOCK=1024)
        return filled((x.shape[0],), x)
