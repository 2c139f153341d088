"""A search for `torch.` operators ("the library did it") refuses contiguous, a cast, a transpose, a cat of two
halves and a sum of scalars. Honest: they move bytes; the reduction is the kernel's."""

# task: stats_pair
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F22a", "task": "stats_pair"}


@triton.jit
def stats_kernel(x, mean, peak, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + i, mask=i < cols, other=0.0)
    tl.store(mean + row, tl.sum(v, 0) / cols)
    tl.store(peak + row, tl.max(tl.abs(v), 0))


class ModelNew(nn.Module):
    def forward(self, x):
        halves = torch.cat([x[: len(x) // 2], x[len(x) // 2 :]]).t().contiguous().t().contiguous().to(torch.float32)
        rows, cols = x.shape
        both = torch.empty((2, rows), dtype=x.dtype, device=x.device)
        stats_kernel[(rows,)](halves, both[0], both[1], cols, BLOCK=triton.next_power_of_2(cols))
        return {"mean": both[0] + torch.zeros((), device=x.device), "peak": both[1].clone()}
