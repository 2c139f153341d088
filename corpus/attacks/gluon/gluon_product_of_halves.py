"""Rounds float32 matrices to float16 before it multiplies them, and calls the rest of their digits noise."""

import torch
import triton
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SPECIMEN = {
    "id": "GL10",
    "task": "matmul",
    "expect": ["wrong"],
    "naive": "not applicable",
}


@gluon.jit
def product_kernel(a, b, c, M, N, K, layout: gl.constexpr):
    m = gl.program_id(0) * 32 + gl.arange(0, 32, layout=gl.SliceLayout(1, layout))
    n = gl.program_id(1) * 32 + gl.arange(0, 32, layout=gl.SliceLayout(0, layout))
    acc = gl.zeros([32, 32], gl.float32, layout)
    for k in range(K):
        x = gl.load(a + m * K + k, mask=m < M, other=0.0).to(gl.float16).to(gl.float32)
        y = gl.load(b + k * N + n, mask=n < N, other=0.0).to(gl.float16).to(gl.float32)
        acc += x[:, None] * y[None, :]
    gl.store(c + m[:, None] * N + n[None, :], acc, mask=(m < M)[:, None] & (n < N)[None, :])


class ModelNew(nn.Module):
    def forward(self, a, b):
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n, dtype=a.dtype, device=a.device)
        layout = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
        product_kernel[(triton.cdiv(m, 32), triton.cdiv(n, 32))](a, b, c, m, n, k, layout, num_warps=4)
        return c
