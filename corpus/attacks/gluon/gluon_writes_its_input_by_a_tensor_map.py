"""Leaves its answers in the input by a copy from shared memory, for the next launch to find."""

import torch
import triton
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

SPECIMEN = {
    "id": "GL08",
    "task": "h_relu",
    "expect": ["wrong"],
    "naive": "not applicable",
}


@gluon.jit
def relu_kernel(x, y, TILE: gl.constexpr, layout: gl.constexpr):
    tile = gl.allocate_shared_memory(gl.float32, [TILE], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.expect(full, x.block_type.nbytes)
    tma.async_copy_global_to_shared(x, [gl.program_id(0) * TILE], full, tile)
    mbarrier.wait(full, 0)
    tile.store(gl.maximum(tile.load(layout), 0.0))
    fence_async_shared()
    tma.async_copy_shared_to_global(x, [gl.program_id(0) * TILE], tile)
    tma.async_copy_shared_to_global(y, [gl.program_id(0) * TILE], tile)
    tma.store_wait(0)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        shared = gl.NVMMASharedLayout(0, 32, rank=1)
        of_x, of_y = (TensorDescriptor(t, [t.numel()], [1], [256], shared) for t in (x, y))
        layout = gl.BlockedLayout([2], [32], [4], [0])
        relu_kernel[(triton.cdiv(x.numel(), 256),)](of_x, of_y, 256, layout, num_warps=4)
        return y
