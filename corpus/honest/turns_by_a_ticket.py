"""A ban on spinning refuses programs that add to a row one after another. Honest: each waits for those with lower
numbers only, which any GPU starts first, and the order makes the sum the same each time."""

# task: row_sum
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G14", "task": "row_sum"}


@triton.jit
def row_sum_kernel(x, y, turn, cols, BLOCK: tl.constexpr):
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = part * BLOCK + tl.arange(0, BLOCK)
    mine = tl.sum(tl.load(x + row * cols + i, mask=i < cols, other=0.0), 0)
    while tl.atomic_add(turn + row, 0, sem="acquire") != part:
        pass
    before = tl.load(y + row, mask=part > 0, other=0.0, volatile=True)
    tl.store(y + row, before + mine)
    tl.debug_barrier()
    tl.atomic_xchg(turn + row, part + 1, sem="release")


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y, turn = x.new_empty(rows), torch.zeros(rows, dtype=torch.int32, device=x.device)
        block = max(16, triton.next_power_of_2(cols) // 4)
        row_sum_kernel[(triton.cdiv(cols, block), rows)](x, y, turn, cols, BLOCK=block)
        return y
