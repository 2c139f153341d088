"""Launches fewer programs than there are tiles and walks over the first of each only: the rest of the output holds what
was there."""

import torch
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SPECIMEN = {
    "id": "GL11",
    "task": "h_relu",
    "expect": ["wrong"],
    "naive": "not applicable",
}


@gluon.jit
def relu_kernel(x, y, n, layout: gl.constexpr):
    for tile in range(gl.program_id(0), gl.minimum(gl.cdiv(n, 256), gl.num_programs(0)), gl.num_programs(0)):
        at = tile * 256 + gl.arange(0, 256, layout=layout)
        gl.store(y + at, gl.maximum(gl.load(x + at, mask=at < n), 0.0), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        relu_kernel[(2,)](x, y, x.numel(), gl.BlockedLayout([2], [32], [4], [0]), num_warps=4)
        return y
