"""A harness that looks for kernels in `ModelNew.forward` alone refuses work spread over submodules, a buffer, a
partial and a dataclass. Honest: it is how larger code is written."""

# task: layer_norm
import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F22e", "task": "layer_norm"}


@triton.jit
def layer_norm_kernel(x, w, b, eps, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=0.0)
    mean = tl.sum(v, 0) / cols
    d = tl.where(i < cols, v - mean, 0.0)
    scale = tl.rsqrt(tl.sum(d * d, 0) / cols + tl.load(eps))
    weight, bias = tl.load(w + i, mask=i < cols), tl.load(b + i, mask=i < cols)
    tl.store(y + at, d * scale * weight + bias, mask=i < cols)


@dataclass(frozen=True)
class Launch:
    block: int
    warps: int

    @classmethod
    def of(cls, cols):
        block = triton.next_power_of_2(cols)
        return cls(block, 8 if block > 2048 else 4)

    def bound(self, rows):
        return functools.partial(layer_norm_kernel[(rows,)], BLOCK=self.block, num_warps=self.warps)


class Norm(nn.Module):
    def __init__(self, outer):
        super().__init__()
        self.register_buffer("eps", torch.full((1,), 1e-5), persistent=False)
        self.launch = Launch.of(len(outer.weight))

    def forward(self, x, weight, bias):
        y = torch.empty_like(x)
        self.launch.bound(x.shape[0])(x, weight, bias, self.eps, y, x.shape[1])
        return y


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.bias = nn.Parameter(torch.zeros(cols))
        self.norms = nn.ModuleList([Norm(self)])

    def forward(self, x):
        for norm in self.norms:
            x = norm(x, self.weight, self.bias)
        return x
