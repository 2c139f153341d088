"""A limit of one launch refuses a largest element of each part and then of the parts. Honest: the first of equal ones
wins in both."""

# task: argmax
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G22", "task": "argmax"}


@triton.jit
def parts_kernel(x, values, places, cols, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=-float("inf"))
    best, place = tl.max(v, 0, return_indices=True)
    at = row * tl.num_programs(1) + part
    tl.store(values + at, best)
    tl.store(places + at, part * BLOCK + place)


@triton.jit
def argmax_kernel(values, places, y, count, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)
    v = tl.load(values + row * count + j, mask=j < count, other=-float("inf"))
    _, part = tl.max(v, 0, return_indices=True)
    tl.store(y + row, tl.load(places + row * count + part).to(tl.int64))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        count = triton.cdiv(cols, 32)
        values = x.new_empty(rows, count)
        places = torch.empty(rows, count, dtype=torch.int32, device=x.device)
        y = torch.empty(rows, dtype=torch.int64, device=x.device)
        parts_kernel[(rows, count)](x, values, places, cols, BLOCK=32)
        argmax_kernel[(rows,)](values, places, y, count, BLOCK=triton.next_power_of_2(count))
        return y
