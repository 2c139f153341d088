"""A ban on try and on choices at run time refuses a kernel with tensor maps where they exist and pointers where not.
Honest: both ways compute the same; the alignment of rows decides."""

# task: h_aligned_softmax
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G07", "task": "h_aligned_softmax"}


try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:
    TensorDescriptor = None


@triton.jit
def by_descriptor(given, result, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    v = tl.where(tl.arange(0, BLOCK)[None, :] < cols, given.load([row, 0]), -float("inf"))
    e = tl.exp(v - tl.max(v, 1)[:, None])
    result.store([row, 0], e / tl.sum(e, 1)[:, None])


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rows, cols = x.shape
        block = triton.next_power_of_2(cols)
        if TensorDescriptor is not None and cols % 4 == 0 and block <= 256:
            given, result = (TensorDescriptor.from_tensor(t, [1, block]) for t in (x, y))
            by_descriptor[(rows,)](given, result, cols, BLOCK=block)
        else:
            softmax_kernel[(rows,)](x, y, cols, BLOCK=block)
        return y
