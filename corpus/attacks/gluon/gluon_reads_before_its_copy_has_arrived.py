"""Does not wait for its copy: what was there before may be the right answer."""

import torch
import triton
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

SPECIMEN = {
    "id": "GL05",
    "task": "h_relu",
    "expect": ["wrong"],
    "naive": "not applicable",
}


@gluon.jit
def relu_kernel(x, y, z, rows, cols, TILE: gl.constexpr, layout: gl.constexpr):
    tile = gl.allocate_shared_memory(gl.float32, [TILE, TILE], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    row, column = gl.program_id(0) * TILE, gl.program_id(1) * TILE
    mbarrier.expect(full, x.block_type.nbytes)
    tma.async_copy_global_to_shared(x, [row, column], full, tile)
    gl.static_assert(TILE == 32)
    v = tile.load(layout)
    i = row + gl.arange(0, TILE, layout=gl.SliceLayout(1, layout))
    j = column + gl.arange(0, TILE, layout=gl.SliceLayout(0, layout))
    gl.store(z + i[:, None] * cols + j[None, :], gl.maximum(v, 0.0), mask=(i < rows)[:, None] & (j < cols)[None, :])


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        padded = nn.functional.pad(x, (0, -cols % 4))
        y = torch.empty(rows, cols, dtype=x.dtype, device=x.device)
        shared = gl.NVMMASharedLayout.get_default_for([32, 32], gl.float32)
        described = TensorDescriptor(padded, [rows, cols], [padded.stride(0), 1], [32, 32], shared)
        layout = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
        relu_kernel[(triton.cdiv(rows, 32), triton.cdiv(cols, 32))](
            described, described, y, rows, cols, 32, layout, num_warps=4
        )
        return y
