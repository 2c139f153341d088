"""An allclose with a float tolerance, or an isfinite check, fails on integer outputs. Honest: counts by
`tl.histogram`, joined by atomics whose order changes nothing."""

# task: h_histogram
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F05b", "task": "h_histogram"}


@triton.jit
def histogram_kernel(x, counts, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    found = tl.histogram(v, 64, mask=i < n)
    tl.atomic_add(counts + tl.arange(0, 64), found, sem="relaxed")


class ModelNew(nn.Module):
    def forward(self, x):
        counts = torch.zeros(64, dtype=torch.int32, device=x.device)
        histogram_kernel[(triton.cdiv(x.numel(), 512),)](x, counts, x.numel(), BLOCK=512)
        return counts
