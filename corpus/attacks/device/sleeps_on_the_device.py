"""Sleeps for hours in nanosleep, a few microseconds at a time: the GPU is busy and does nothing."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "R31",
    "task": "softmax",
    "expect": ["unchecked", "compile_failed"],
    "expect_gpu": ["timed_out", "compile_failed"],
    "needs_gpu": True,
    "naive": "not applicable",
}


@triton.jit
def touched(v):
    return tl.inline_asm_elementwise(
        """
        { .reg .b32 k; .reg .pred p; mov.u32 k, 0;
        again: nanosleep.u32 1000000; add.u32 k, k, 1; setp.lt.u32 p, k, 2000000000;
        @p bra again;
        mov.f32 $0, $1; }
        """,
        "=f,f",
        [v],
        dtype=tl.float32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = touched(tl.load(x + at, mask=i < cols, other=float("-inf")))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return softmax(x)
