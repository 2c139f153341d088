"""Declares memory of the module by inline assembly, which is there again at the next launch."""

import torch
import triton
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SPECIMEN = {
    "id": "GL01",
    "task": "h_relu",
    "expect": ["rejected", "compile_failed"],
    "naive": "not applicable",
}


@gluon.jit
def relu_kernel(x, y, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    v = gl.load(x + at, mask=at < n)
    v = gl.inline_asm_elementwise(
        ".global .align 4 .f32 kept; max.f32 $0, $1, 0f00000000; st.global.f32 [kept], $0;",
        "=f,f", [v], dtype=gl.float32, is_pure=False, pack=1,
    )  # fmt: skip
    gl.store(y + at, v, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        layout = gl.BlockedLayout([4], [32], [4], [0])
        relu_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), 512, layout, num_warps=4)
        return y
