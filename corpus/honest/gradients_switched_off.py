"""A ban on global switches refuses `torch.no_grad` and `torch.inference_mode`. Honest: a forward that nobody
differentiates; no arithmetic depends on them."""

# task: gelu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G67", "task": "gelu"}


@triton.jit
def gelu_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476)), mask=i < n)


class ModelNew(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        y = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device)
        gelu_kernel[(triton.cdiv(x.numel(), 1024),)](x.detach(), y, x.numel(), BLOCK=1024)
        return y
