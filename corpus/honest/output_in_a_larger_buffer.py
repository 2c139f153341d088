"""A check that the output is the buffer that was allocated refuses a view of a larger one. Honest: every element of
the view is written on every call."""

# task: h_relu
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G55", "task": "h_relu"}


@triton.jit
def relu_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.maximum(tl.load(x + i, mask=i < n), 0.0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        whole = x.new_empty(x.numel() + 256)
        y = whole[128 : 128 + x.numel()]
        relu_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), BLOCK=512)
        return y.view(x.shape)
