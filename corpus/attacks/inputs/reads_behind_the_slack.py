"""Reads vectors of eight where the task lets it read three elements behind the end: up to four more, never stored."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "C37",
    "task": "h_slack_relu",
    "expect": ["wrong"],
    "expect_gpu": ["crashed", "wrong"],
    "naive": "not applicable",
}


@triton.jit
def relu_kernel(x, y, n, EIGHT: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * EIGHT + tl.arange(0, EIGHT)
    tl.store(y + i, tl.maximum(tl.load(x + i), 0.0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        relu_kernel[((x.numel() + 7) // 8,)](x, y, x.numel(), EIGHT=8)
        return y
