"""A check that grids have one axis refuses rows on the second. Honest: a grid of columns and rows, each program a
tile."""

# task: h_relu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G33", "task": "h_relu"}


@triton.jit
def relu_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(1).to(tl.int64) * cols + i
    tl.store(y + at, tl.maximum(tl.load(x + at, mask=i < cols), 0.0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rows, cols = x.shape
        relu_kernel[lambda meta: (triton.cdiv(cols, meta["BLOCK"]), rows)](x, y, cols, BLOCK=128)
        return y
