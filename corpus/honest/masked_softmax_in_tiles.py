"""A check of simple maxima refuses one that starts at -inf and is corrected tile by tile. Honest: the correction of
an empty beginning is exp(-inf - -inf), which it guards."""

# task: masked_softmax
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G42", "task": "masked_softmax"}


@triton.jit
def softmax_kernel(x, mask, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top, total = -float("inf"), 0.0
    for start in range(0, cols, BLOCK):
        i = start + tl.arange(0, BLOCK)
        keep = tl.load(mask + row * cols + i, mask=i < cols, other=0) != 0
        v = tl.load(x + row * cols + i, mask=keep, other=-float("inf"))
        new = tl.maximum(top, tl.max(v, 0))
        safe = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp(top - safe) + tl.sum(tl.exp(v - safe), 0)
        top = new
    for start in range(0, cols, BLOCK):
        i = start + tl.arange(0, BLOCK)
        keep = tl.load(mask + row * cols + i, mask=i < cols, other=0) != 0
        v = tl.load(x + row * cols + i, mask=keep, other=-float("inf"))
        tl.store(y + row * cols + i, tl.exp(v - top) / total, mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x, mask):
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, mask, y, x.shape[1], BLOCK=64)
        return y
