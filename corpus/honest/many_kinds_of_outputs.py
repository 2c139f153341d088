"""A harness that compares `output[0]` by allclose, or calls isfinite on all leaves, stumbles over a tuple of a list,
a 0-dim tensor, integers, booleans, a number and None. Honest: it is the structure that the reference returns."""

# task: h_structure
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F12d", "task": "h_structure"}


@triton.jit
def row_kernel(x, place, positive, total, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=0.0)
    tl.store(place + row, tl.argmax(tl.where(i < cols, v, -float("inf")), 0).to(tl.int64))
    tl.store(positive + row * cols + i, v > 0, mask=i < cols)
    tl.atomic_add(total, tl.sum(v * v, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        place = torch.empty(rows, dtype=torch.int64, device=x.device)
        positive = torch.empty_like(x, dtype=torch.bool)
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        row_kernel[(rows,)](x, place, positive, total, cols, BLOCK=triton.next_power_of_2(cols))
        return [place, positive], total, None, cols
