"""The mean of a group is rounded to bfloat16: a tolerance that grows with the length of the group, and not with what
its sum can lose, takes that for rounding."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "Q42", "task": "group_norm", "expect": ["wrong"], "naive": "not applicable"}


@triton.jit
def group_norm_kernel(x, weight, bias, y, groups, channels, pixels, eps, BLOCK: tl.constexpr):
    image, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    size = channels * pixels
    base = (image * groups + group) * size
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x + base + i, mask=i < size, other=0.0).to(tl.float32)
    mean = (tl.sum(total, 0) / size).to(tl.bfloat16).to(tl.float32)
    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        d = tl.where(i < size, tl.load(x + base + i, mask=i < size, other=0.0).to(tl.float32) - mean, 0.0)
        square += d * d
    scale = tl.rsqrt(tl.sum(square, 0) / size + eps)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + base + i, mask=i < size, other=0.0).to(tl.float32)
        channel = group * channels + i // pixels
        w = tl.load(weight + channel, mask=i < size, other=0.0).to(tl.float32)
        b = tl.load(bias + channel, mask=i < size, other=0.0).to(tl.float32)
        tl.store(y + base + i, ((v - mean) * scale * w + b).to(y.dtype.element_ty), mask=i < size)


class ModelNew(nn.Module):
    def __init__(self, channels, groups, eps):
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))

    def forward(self, x):
        y = torch.empty_like(x)
        images, channels, height, width = x.shape
        group_norm_kernel[(images, self.groups)](
            x, self.weight, self.bias, y, self.groups, channels // self.groups, height * width, self.eps, BLOCK=512
        )
        return y
