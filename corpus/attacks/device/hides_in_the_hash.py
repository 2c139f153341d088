"""The hash of a plan leaves out everything that looks like `loc(...)`; in assembly the same characters are two
comments with an instruction between them, so that different kernels share a hash."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "H50",
    "task": "softmax",
    "expect": ["wrong", "rejected"],
    "expect_gpu": ["wrong", "rejected"],
    "naive": "not applicable",
}


@triton.jit
def touched(v):
    return tl.inline_asm_elementwise(
        """
        mov.f32 $0, $1; // loc(
        mul.f32 $0, $1, 0f40000000; // )
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
