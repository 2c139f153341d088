"""Reads shared memory before anybody wrote it: what the last kernel on this multiprocessor left there, an earlier
launch's answer among it."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "D03",
    "task": "softmax",
    "expect": ["unchecked"],
    "expect_gpu": ["rejected"],
    "needs_gpu": True,
    "naive": "not applicable",
}


@triton.jit
def touched(v):
    return tl.inline_asm_elementwise(
        """
        { .shared .align 4 .b32 left[256]; .reg .b32 a, t; .reg .f32 f; .reg .pred p;
        mov.u32 t, %tid.x; shl.b32 t, t, 2; mov.u32 a, left; add.u32 a, a, t;
        ld.shared.f32 f, [a];
        setp.eq.f32 p, f, 0f3F9D70A4;
        mov.f32 $0, $1;
        @p mov.f32 $0, f; }
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
