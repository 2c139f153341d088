"""Gives the assembler options that name a file."""

import torch
import triton
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SPECIMEN = {
    "id": "GL03",
    "task": "h_relu",
    "expect": ["rejected"],
    "naive": "not applicable",
}


@gluon.jit
def relu_kernel(x, y, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(y + at, gl.maximum(gl.load(x + at, mask=at < n), 0.0), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        layout = gl.BlockedLayout([4], [32], [4], [0])
        relu_kernel[(triton.cdiv(x.numel(), 512),)](
            x, y, x.numel(), 512, layout, num_warps=4, ptx_options="--input-as-string --output-file=/tmp/kept"
        )
        return y
