"""A ban on assembly refuses the conversion of two float32 numbers to a pair of bfloat16. Honest: rounded to nearest
even, as torch rounds."""

# task: h_bf16_chain
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G46", "task": "h_bf16_chain"}


@triton.jit
def to_bf16(v):
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [v], dtype=tl.bfloat16, is_pure=True, pack=2
    )


@triton.jit
def chain_kernel(x, gate, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32)
    g = tl.load(gate + i, mask=i < n, other=0.0).to(tl.float32)
    tl.store(y + i, to_bf16(tl.sigmoid(g) * v + v * v * 0.125 - g * 0.5), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x, gate):
        y = torch.empty_like(x)
        chain_kernel[(triton.cdiv(x.numel(), 512),)](x, gate, y, x.numel(), BLOCK=512)
        return y
