"""A ban on events and streams refuses this: a timer on the current stream sees no work of another. Honest: the second
stream waits for an event of the first, and the first for an event of the second."""

# task: row_sum
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G01", "task": "row_sum"}


@triton.jit
def part_kernel(x, parts, cols, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = part * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=0.0)
    tl.store(parts + row * tl.num_programs(1) + part, tl.sum(v, 0))


@triton.jit
def total_kernel(parts, y, count, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(y + row, tl.sum(tl.load(parts + row * count + i, mask=i < count, other=0.0), 0))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.side = torch.cuda.Stream()

    def forward(self, x):
        rows, cols = x.shape
        count = triton.cdiv(cols, 128)
        parts, y = x.new_empty(rows, count), x.new_empty(rows)
        ready, done = torch.cuda.Event(), torch.cuda.Event()
        part_kernel[(rows, count)](x, parts, cols, BLOCK=128)
        ready.record()
        self.side.wait_event(ready)
        with torch.cuda.stream(self.side):
            total_kernel[(rows,)](parts, y, count, BLOCK=triton.next_power_of_2(count))
            done.record()
        torch.cuda.current_stream().wait_event(done)
        return y
