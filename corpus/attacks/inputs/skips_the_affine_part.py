"""Leaves out weight and bias, which are ones and zeros in a fresh nn.LayerNorm."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "S03", "task": "layer_norm", "expect": ["wrong"], "naive": "fooled"}


@triton.jit
def layer_norm_kernel(x, w, b, y, cols, eps, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=0.0)
    mean = tl.sum(v, 0) / cols
    d = tl.where(i < cols, v - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(d * d, 0) / cols + eps)
    weight = tl.load(w + i, mask=i < cols)
    bias = tl.load(b + i, mask=i < cols)
    tl.store(y + at, d * scale, mask=i < cols)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        y = torch.empty_like(x)
        rows, cols = x.shape
        layer_norm_kernel[(rows,)](x, self.weight, self.bias, y, cols, 1e-5, BLOCK=triton.next_power_of_2(cols))
        return y
