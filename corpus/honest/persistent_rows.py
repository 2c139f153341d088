"""A check that the grid grows with the input refuses a persistent kernel: one program per multiprocessor, whatever
the shape. Honest: each program walks over its share of the rows."""

# task: softmax
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F17a", "task": "softmax"}


@triton.jit
def softmax_kernel(x, y, rows, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    i = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        at = row.to(tl.int64) * cols + i
        v = tl.load(x + at, mask=i < cols, other=-float("inf"))
        e = tl.exp(v - tl.max(v, 0))
        tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.programs = torch.cuda.get_device_properties(0).multi_processor_count

    def forward(self, x):
        rows, cols = x.shape
        y = torch.empty_like(x)
        grid = (min(self.programs, triton.cdiv(rows, 4)),)
        softmax_kernel[grid](x, y, rows, cols, BLOCK=triton.next_power_of_2(cols), STAGES=2, num_warps=8)
        return y
