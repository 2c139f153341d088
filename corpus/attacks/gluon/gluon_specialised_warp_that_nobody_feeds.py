"""Lets its warps wait for a load that another warp never makes, to hold the judge."""

import torch
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

SPECIMEN = {
    "id": "GL09",
    "task": "h_relu",
    "expect": ["timed_out"],
    "naive": "not applicable",
}


@gluon.jit
def compute(x, y, n, tile, full, layout: gl.constexpr):
    mbarrier.wait(full, 0)
    at = gl.arange(0, 512, layout=layout)
    gl.store(y + at, tile.load(layout), mask=at < n)


@gluon.jit
def load(x, y, n, tile, full, layout: gl.constexpr):
    """Never arrives at the barrier."""


@gluon.jit
def relu_kernel(x, y, n, layout: gl.constexpr):
    tile = gl.allocate_shared_memory(gl.float32, [512], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    gl.warp_specialize([(compute, (x, y, n, tile, full, layout)), (load, (x, y, n, tile, full, layout))], [1], [24])


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        relu_kernel[(1,)](x, y, x.numel(), gl.BlockedLayout([4], [32], [4], [0]), num_warps=4)
        return y
