"""Works on half of the multiprocessors."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "D05",
    "task": "softmax",
    "expect": ["unchecked"],
    "expect_gpu": ["wrong"],
    "needs_gpu": True,
    "naive": "not applicable",
}


@triton.jit
def touched(v):
    return tl.inline_asm_elementwise(
        """
        { .reg .b32 s; .reg .pred p; mov.u32 s, %smid; and.b32 s, s, 1; setp.ne.u32 p, s, 0;
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
