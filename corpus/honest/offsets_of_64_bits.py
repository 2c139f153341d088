"""A comparison of launches with small shapes finds 64-bit arithmetic that they do not need. Honest: offsets beyond
2^31 elements would wrap in 32 bits."""

# task: gelu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G30", "task": "gelu"}


@triton.jit
def gelu_kernel(x, y, n: tl.int64, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    i = start + tl.arange(0, BLOCK).to(tl.int64)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476)), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        gelu_kernel[(triton.cdiv(x.numel(), 2048),)](x, y, x.numel(), BLOCK=2048)
        return y
