"""A check that kernels come from triton.language refuses this: Gluon is Triton with layouts that the author chooses. A
row lies in the registers of a few warps, 16 bytes a thread and access."""

import torch
import triton
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SPECIMEN = {
    "id": "F-gluon-05",
    "task": "softmax",
    "expect": ["checked"],
}


@gluon.jit
def softmax_kernel(y, x, rows, cols, ROWS: gl.constexpr, COLS: gl.constexpr, layout: gl.constexpr):
    row = gl.program_id(0) * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    col = gl.arange(0, COLS, layout=gl.SliceLayout(0, layout))
    at = row.to(gl.int64)[:, None] * cols + col[None, :]
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    v = gl.load(x + at, mask=inside, other=float("-inf"))
    v = gl.exp2((v - gl.max(v, axis=1)[:, None]) * 1.4426950408889634)
    gl.store(y + at, v * (1.0 / gl.sum(v, axis=1))[:, None], mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        cols = x.shape[-1]
        rows = x.numel() // cols
        y = torch.empty_like(x)
        width = max(128, triton.next_power_of_2(cols))
        warps = max(1, min(16, width // 512))  # of a row; short rows share a block of four
        together = max(1, 4 // warps)
        layout = gl.BlockedLayout([1, 4], [1, 32], [together, warps], [1, 0])
        softmax_kernel[(triton.cdiv(rows, together),)](
            y, x, rows, cols, together, width, layout, num_warps=together * warps
        )
        return y
