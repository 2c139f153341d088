"""A check that every load has a mask refuses this. Honest: the task's contract lets a kernel read three elements behind
the end of its input, which are never stored."""

# task: h_slack_relu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G70", "task": "h_slack_relu"}


@triton.jit
def relu_kernel(x, y, n, FOUR: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * FOUR + tl.arange(0, FOUR)
    tl.store(y + i, tl.maximum(tl.load(x + i), 0.0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        relu_kernel[((x.numel() + 3) // 4,)](x, y, x.numel(), FOUR=4)
        return y
