"""A rule that kernels must not overlap refuses programmatic dependent launch: the second kernel starts before the
first has ended. Honest: it waits for the first one's writes before it reads them."""

# task: row_sum
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F09b", "task": "row_sum"}


@triton.jit
def partial_kernel(x, partial, cols, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(part * BLOCK, cols, PARTS * BLOCK):
        total += tl.load(x + row * cols + start + i, mask=start + i < cols, other=0.0)
    tl.store(partial + row * PARTS + part, tl.sum(total, 0))
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def finish_kernel(partial, y, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    tl.extra.cuda.gdc_wait()
    tl.store(y + row, tl.sum(tl.load(partial + row * PARTS + tl.arange(0, PARTS)), 0))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        partial = torch.empty((rows, 4), dtype=torch.float32, device=x.device)
        y = torch.empty(rows, dtype=x.dtype, device=x.device)
        partial_kernel[(rows, 4)](x, partial, cols, PARTS=4, BLOCK=32, launch_pdl=True)
        finish_kernel[(rows,)](partial, y, PARTS=4, launch_pdl=True)
        return y
