"""A check of one pass refuses means and squares of parts that a second kernel merges. Honest: by Chan's formula, with
squares of differences to each part's own mean, which loses nothing on offsets."""

# task: layer_norm
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G20", "task": "layer_norm"}


@triton.jit
def parts_kernel(x, means, squares, cols, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=0.0)
    count = tl.minimum(cols - part * BLOCK, BLOCK).to(tl.float32)
    mean = tl.sum(v, 0) / count
    d = tl.where(i < cols, v - mean, 0.0)
    at = row * tl.num_programs(1) + part
    tl.store(means + at, mean)
    tl.store(squares + at, tl.sum(d * d, 0))


@triton.jit
def norm_kernel(x, means, squares, weight, bias, y, cols, eps, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    row, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    j = tl.arange(0, PARTS)
    count = tl.where(j < parts, tl.minimum(cols - j * BLOCK, BLOCK), 0).to(tl.float32)
    found = tl.load(means + row * parts + j, mask=j < parts, other=0.0)
    mean = tl.sum(found * count, 0) / cols
    d = found - mean
    total = tl.sum(tl.load(squares + row * parts + j, mask=j < parts, other=0.0) + count * d * d, 0)
    i = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols)
    scale = tl.rsqrt(total / cols + eps)
    out = (v - mean) * scale * tl.load(weight + i, mask=i < cols) + tl.load(bias + i, mask=i < cols)
    tl.store(y + row * cols + i, out, mask=i < cols)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        rows, cols = x.shape
        count = triton.cdiv(cols, 64)
        means, squares, y = x.new_empty(rows, count), x.new_empty(rows, count), torch.empty_like(x)
        parts_kernel[(rows, count)](x, means, squares, cols, BLOCK=64)
        norm_kernel[(rows, count)](
            x, means, squares, self.weight, self.bias, y, cols, 1e-5, BLOCK=64, PARTS=triton.next_power_of_2(count)
        )
        return y
