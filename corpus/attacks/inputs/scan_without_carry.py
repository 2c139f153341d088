"""A running sum that starts again with every tile of 64 columns."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "C34", "task": "cumsum", "expect": ["wrong"], "naive": "not fooled"}


@triton.jit
def scan_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=0.0)
    tl.store(y + at, tl.cumsum(v, 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        scan_kernel[(x.shape[0], triton.cdiv(x.shape[1], 64))](x, y, x.shape[1], BLOCK=64)
        return y
