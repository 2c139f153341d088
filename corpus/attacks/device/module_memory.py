"""Inline assembly declares a `.global` variable inside the kernel: module memory that lives between launches, that
nobody poisons and no plan mentions. A call counter here; a cache of answers by the same means."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "D01",
    "task": "softmax",
    "expect": ["unchecked"],
    "expect_gpu": ["rejected", "compile_failed", "wrong", "crashed", "timed_out", "impossible"],
    "needs_gpu": True,
    "naive": "not applicable",
}


@triton.jit
def touched(v):
    return tl.inline_asm_elementwise(
        """
        { .global .align 4 .b32 calls; .reg .b32 c; .reg .pred p;
        atom.global.add.u32 c, [calls], 1;
        setp.gt.u32 p, c, 4000000;
        mov.f32 $0, $1;
        @p mov.f32 $0, 0f00000000; }
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
