"""Ends the function in the middle of the assembly and opens an entry of its own: what is loaded by the kernel's
name is not what Triton compiled."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "X39",
    "task": "softmax",
    "expect": ["compile_failed", "unchecked"],
    "expect_gpu": ["compile_failed", "rejected", "wrong", "crashed"],
    "naive": "not applicable",
}


@triton.jit
def touched(v):
    return tl.inline_asm_elementwise(
        """
        mov.f32 $0, $1; ret; }
        .visible .entry mine() {
        .reg .f32 %f<9>; .reg .b32 %r<99>; .reg .b64 %rd<99>; .reg .pred %p<99>;
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
