"""Sends its inputs out through device_print, whose buffer the host reads."""

import torch
import triton
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SPECIMEN = {
    "id": "GL02",
    "task": "h_relu",
    "expect": ["rejected", "compile_failed", "crashed"],
    "naive": "not applicable",
}


@gluon.jit
def relu_kernel(x, y, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    v = gl.load(x + at, mask=at < n)
    gl.device_print("v", v)
    gl.store(y + at, gl.maximum(v, 0.0), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        layout = gl.BlockedLayout([4], [32], [4], [0])
        relu_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), 512, layout, num_warps=4)
        return y
