"""Results rounded to 17 bits of mantissa where float32 was declared."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "Q12", "task": "gelu", "expect": ["wrong"], "naive": "fooled"}


@triton.jit
def gelu_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    r = 0.5 * v * (1 + tl.erf(v * 0.7071067811865476))
    bits = (r.to(tl.int32, bitcast=True) + 64) & -128
    tl.store(y + i, bits.to(tl.float32, bitcast=True), mask=i < n)


def gelu(x):
    y = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return gelu(x)
