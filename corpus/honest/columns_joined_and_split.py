"""A list of known operations refuses join, split and interleave. Honest: pairs are taken apart and put together
again."""

# task: h_relu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G62", "task": "h_relu"}


@triton.jit
def relu_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    even, odd = tl.split(tl.reshape(v, (BLOCK // 2, 2)))
    both = tl.interleave(tl.maximum(even, 0.0), tl.maximum(odd, 0.0))
    tl.store(y + i, both, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        relu_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), BLOCK=512)
        return y
