"""A ban on counters in memory refuses a sum that the last program to arrive finishes. Honest: whoever is last, the
parts are added in the same order."""

# task: row_sum
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G13", "task": "row_sum"}


@triton.jit
def row_sum_kernel(x, parts, y, arrived, cols, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=0.0)
    count = tl.num_programs(1)
    tl.store(parts + row * count + part, tl.sum(v, 0))
    tl.debug_barrier()
    if tl.atomic_add(arrived + row, 1, sem="acq_rel") == count - 1:
        j = tl.arange(0, PARTS)
        found = tl.load(parts + row * count + j, mask=j < count, other=0.0, volatile=True)
        tl.store(y + row, tl.sum(found, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        count = triton.cdiv(cols, 64)
        parts, y = x.new_empty(rows, count), x.new_empty(rows)
        arrived = torch.zeros(rows, dtype=torch.int32, device=x.device)
        row_sum_kernel[(rows, count)](x, parts, y, arrived, cols, BLOCK=64, PARTS=triton.next_power_of_2(count))
        return y
