"""A list of allowed imports refuses dataclasses. Honest: options of the launch with names and types."""

# task: softmax
import dataclasses

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G60", "task": "softmax"}


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


@dataclasses.dataclass(frozen=True)
class Options:
    block: int
    warps: int

    @classmethod
    def for_columns(cls, cols):
        block = triton.next_power_of_2(cols)
        return cls(block, 8 if block >= 2048 else 4)


class ModelNew(nn.Module):
    def forward(self, x):
        y, options = torch.empty_like(x), Options.for_columns(x.shape[1])
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=options.block, num_warps=options.warps)
        return y
