"""torch computes into the tensor that is returned; a kernel of its own is launched on that tensor too, with a mask
that is never true."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "L34",
    "task": "softmax",
    "expect": ["rejected"],
    "expect_gpu": ["rejected"],
    "coverage_below": 0.5,
    "naive": "fooled",
}


@triton.jit
def fill_kernel(y, n, value, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, value, mask=i < -1)


def filled(shape, like, value=0.0):
    y = torch.empty(shape, dtype=torch.float32, device=like.device)
    fill_kernel[(triton.cdiv(y.numel(), 1024),)](y, y.numel(), value, BLOCK=1024)
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.softmax(x, dim=-1)
        fill_kernel[(1,)](y, y.numel(), 0.0, BLOCK=16)
        return y
