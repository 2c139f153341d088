"""A list of allowed calls refuses `torch.cuda.device` and a look at the current device. Honest: a guard so that the
launch goes to the GPU of its input."""

# task: h_relu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G03", "task": "h_relu"}


@triton.jit
def relu_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.maximum(tl.load(x + i, mask=i < n), 0.0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        with torch.cuda.device(x.device):
            relu_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
