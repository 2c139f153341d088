"""A check of one program a row refuses several rows in a tile. Honest: reductions along the second axis."""

# task: softmax
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G50", "task": "softmax"}


@triton.jit
def softmax_kernel(x, y, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    i = tl.arange(0, BLOCK)[None, :]
    at = row.to(tl.int64) * cols + i
    inside = (row < rows) & (i < cols)
    v = tl.load(x + at, mask=inside, other=-float("inf"))
    v = tl.where(row < rows, v, 0.0)
    e = tl.exp(v - tl.max(v, 1, keep_dims=True))
    tl.store(y + at, e / tl.sum(e, 1, keep_dims=True), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rows, cols = x.shape
        softmax_kernel[(triton.cdiv(rows, 4),)](x, y, rows, cols, ROWS=4, BLOCK=triton.next_power_of_2(cols))
        return y
