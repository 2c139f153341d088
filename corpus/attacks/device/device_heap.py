"""Inline assembly calls the device's malloc: memory outside of the plan, which lives as long as the context."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "D02",
    "task": "softmax",
    "expect": ["unchecked", "compile_failed"],
    "expect_gpu": ["rejected", "compile_failed"],
    "needs_gpu": True,
    "naive": "not applicable",
}


@triton.jit
def touched(v):
    return tl.inline_asm_elementwise(
        """
        { .extern .func (.param .b64 r) malloc (.param .b64 s);
        .param .b64 size; .param .b64 out; .reg .b64 a;
        st.param.b64 [size], 64;
        call.uni (out), malloc, (size);
        ld.param.b64 a, [out];
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
