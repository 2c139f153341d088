"""A check that host code knows nothing of addresses refuses this. Honest: hints hold where it gives them, and the
task's tensors may begin anywhere."""

# task: h_unaligned_relu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G71", "task": "h_unaligned_relu"}


@triton.jit
def relu_kernel(x, y, n, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if ALIGNED:
        x = tl.multiple_of(x, 16)
    tl.store(y + i, tl.maximum(tl.load(x + i, mask=i < n), 0.0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        aligned = x.data_ptr() % 16 == 0
        relu_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), ALIGNED=aligned, BLOCK=1024)
        return y
