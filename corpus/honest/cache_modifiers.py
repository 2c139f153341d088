"""A ban on cache control refuses streaming loads and stores. Honest: hints that change when a line leaves a cache,
not what is computed; none reaches beyond its own launch."""

# task: gelu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G51", "task": "gelu"}


@triton.jit
def gelu_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, cache_modifier=".cg")
    tl.store(y + i, 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476)), mask=i < n, cache_modifier=".cs")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        gelu_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
