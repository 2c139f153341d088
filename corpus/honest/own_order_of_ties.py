"""A rule that the operator of the reference must occur, and an index test on inputs rounded to 16 bits, refuse an
argmax by a reduction of pairs. Honest: of equal values the first place wins, as torch says."""

# task: argmax
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F23a", "task": "argmax"}


@triton.jit
def better(a, i, b, j):
    first = (a > b) | ((a == b) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def argmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=-float("inf"))
    _, place = tl.reduce((v, i), 0, better)
    tl.store(y + row, place.to(tl.int64))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
        argmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
