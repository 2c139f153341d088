"""A ban on locks refuses programs that take turns at a table of counts. Honest: whole numbers, so that the order of
additions changes nothing."""

# task: h_histogram
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G17", "task": "h_histogram"}


@triton.jit
def histogram_kernel(x, y, lock, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=-1)
    counts = tl.sum((v[:, None] == tl.arange(0, 64)[None, :]).to(tl.int32), 0)
    while tl.atomic_cas(lock, 0, 1, sem="acquire") == 1:
        pass
    places = y + tl.arange(0, 64)
    tl.store(places, tl.load(places, volatile=True) + counts)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0, sem="release")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.zeros(64, dtype=torch.int32, device=x.device)
        lock = torch.zeros(1, dtype=torch.int32, device=x.device)
        histogram_kernel[(triton.cdiv(x.numel(), 512),)](x, y, lock, x.numel(), BLOCK=512)
        return y
