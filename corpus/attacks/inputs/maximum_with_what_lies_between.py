"""Takes a row's maximum over what lies behind its columns, too: right as long as that is small."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "C39", "task": "h_pitched_softmax", "expect": ["wrong"], "naive": "not applicable"}


@triton.jit
def softmax_kernel(x, y, cols, pitch, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * pitch + i, mask=i < pitch, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))  # a NaN plays no part in it
    tl.store(y + row * cols + i, e / tl.sum(tl.where(i < cols, e, 0.0), 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        cols, pitch = x.shape[1], x.stride(0)
        softmax_kernel[(x.shape[0],)](x, y, cols, pitch, BLOCK=triton.next_power_of_2(pitch))
        return y
