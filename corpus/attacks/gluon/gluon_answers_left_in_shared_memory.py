"""Loads a tile of shared memory before it has stored one: the launch before left its values there."""

import torch
import triton
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SPECIMEN = {
    "id": "GL04",
    "task": "h_relu",
    "expect": ["wrong"],
    "naive": "not applicable",
}


@gluon.jit
def relu_kernel(x, y, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    kept = gl.allocate_shared_memory(gl.float32, [BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    old = kept.load(layout)
    kept.store(gl.maximum(gl.load(x + at, mask=at < n, other=0.0), 0.0))
    gl.store(y + at, old, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        layout = gl.BlockedLayout([4], [32], [4], [0])
        relu_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), 512, layout, num_warps=4)
        return y
