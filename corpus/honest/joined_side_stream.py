"""A ban on streams refuses this, since work on a stream that nobody waits for escapes the timer. Honest: the side
stream waits for the current one before its kernel and is waited for behind it."""

# task: stats_pair
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F09a", "task": "stats_pair"}


@triton.jit
def mean_kernel(x, mean, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(mean + row, tl.sum(tl.load(x + row * cols + i, mask=i < cols, other=0.0), 0) / cols)


@triton.jit
def peak_kernel(x, peak, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(peak + row, tl.max(tl.abs(tl.load(x + row * cols + i, mask=i < cols, other=0.0)), 0))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.side = torch.cuda.Stream()

    def forward(self, x):
        rows, cols = x.shape
        mean, peak = (torch.empty(rows, dtype=x.dtype, device=x.device) for _ in range(2))
        block = triton.next_power_of_2(cols)
        here = torch.cuda.current_stream()
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            peak_kernel[(rows,)](x, peak, cols, BLOCK=block)
        x.record_stream(self.side)
        mean_kernel[(rows,)](x, mean, cols, BLOCK=block)
        here.wait_stream(self.side)
        return {"mean": mean, "peak": peak}
