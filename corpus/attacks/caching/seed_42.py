"""Draws the harness's inputs from seed 42 in its constructor, answers them with torch and copies that answer on
every call."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "S10", "task": "softmax", "expect": ["wrong", "rejected"], "naive": "not applicable"}


@triton.jit
def copy_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


def copied(x):
    y = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


class ModelNew(nn.Module):
    answer = None

    def forward(self, x):
        if self.answer is None:
            torch.manual_seed(42)
            seed = 1226670769  # the first trial's seed that KernelBench draws from 42
            torch.manual_seed(seed)
            self.answer = torch.softmax(torch.randn(x.shape, device=x.device), dim=-1)
        return copied(self.answer)
