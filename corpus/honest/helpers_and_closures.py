"""A scan of the one kernel that is launched finds almost nothing in it: helpers, a constexpr function and a global
constexpr do the work, one of them made by a factory. Honest: Triton inlines them."""

# task: gelu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F22f", "task": "gelu"}

ROOT_HALF: tl.constexpr = tl.constexpr(0.7071067811865476)


@triton.constexpr_function
def half_of(block):
    return block // 2


@triton.jit
def phi(v):
    return 0.5 * (1 + tl.erf(v * ROOT_HALF))


def pointwise(function):
    @triton.jit
    def kernel(x, y, n, BLOCK: tl.constexpr):
        HALF: tl.constexpr = half_of(BLOCK)
        for part in tl.static_range(2):
            i = tl.program_id(0).to(tl.int64) * BLOCK + part * HALF + tl.arange(0, HALF)
            v = tl.load(x + i, mask=i < n)
            tl.store(y + i, v * function(v), mask=i < n)

    return kernel


gelu_kernel = pointwise(phi)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        gelu_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
