"""Replaces the function that the reference calls, so that the reference is as wrong as the candidate."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "C16", "task": "softmax", "expect": ["wrong"], "naive": "fooled"}


torch.softmax = lambda x, dim=-1: torch.zeros_like(x)


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
