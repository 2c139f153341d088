"""A scan for NaN in the text refuses a kernel that writes it. Honest: where the mask lets nothing through the
reference is NaN, too."""

# task: h_empty_rows
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G41", "task": "h_empty_rows"}


@triton.jit
def softmax_kernel(x, mask, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    keep = tl.load(mask + at, mask=i < cols, other=0).to(tl.int1)
    if tl.sum(keep.to(tl.int32), 0) == 0:
        tl.store(y + at, tl.full((BLOCK,), float("nan"), tl.float32), mask=i < cols)
    else:
        v = tl.load(x + at, mask=keep, other=-float("inf"))
        e = tl.exp(v - tl.max(v, 0))
        tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x, mask):
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, mask, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
