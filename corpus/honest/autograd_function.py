"""A filter for `torch.autograd` ("training code, or a hook") refuses a kernel wrapped as an autograd Function.
Honest: only its forward is called; the backward exists for users."""

# task: gelu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F22b", "task": "gelu"}


@triton.jit
def gelu_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, 0.5 * v * (1 + tl.erf(v * 0.7071067811865476)), mask=i < n)


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        gelu_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        density = torch.exp(-0.5 * x * x) * 0.3989422804014327
        return grad * (0.5 * (1 + torch.erf(x * 0.7071067811865476)) + x * density)


class ModelNew(nn.Module):
    def forward(self, x):
        return Gelu.apply(x)
