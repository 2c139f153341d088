"""A comparison with the reference's own bfloat16 output refuses what is computed in float32 and rounded once: the
reference rounds after each operator. Honest: it is nearer to the truth."""

# task: h_bf16_chain
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F02a", "task": "h_bf16_chain"}


@triton.jit
def chain_kernel(x, gate, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n).to(tl.float32)
    g = tl.load(gate + i, mask=i < n).to(tl.float32)
    r = tl.sigmoid(g) * v + v * v * 0.125
    tl.store(y + i, (r - g * 0.5).to(tl.bfloat16), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x, gate):
        y = torch.empty_like(x)
        chain_kernel[(triton.cdiv(x.numel(), 1024),)](x, gate, y, x.numel(), BLOCK=1024)
        return y
