"""A check that Gluon means Hopper refuses this: asynchronous copies, a ring in shared memory and mma.sync are on every
GPU since Ampere."""

import torch
import triton
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

SPECIMEN = {
    "id": "F-gluon-07",
    "task": "matmul_bf16",
    "expect": ["checked"],
}


@gluon.jit
def fetch(a, b, a_ring, b_ring, piece, m, n, M, N, K, copy: gl.constexpr):
    """Past the edge zeros come."""
    BK: gl.constexpr = a_ring.type.shape[2]
    i = m + gl.arange(0, a_ring.type.shape[1], layout=gl.SliceLayout(1, copy))
    k = piece * BK + gl.arange(0, BK, layout=gl.SliceLayout(0, copy))
    slot = piece % a_ring.type.shape[0]
    at = i.to(gl.int64)[:, None] * K + k[None, :]
    async_copy.async_copy_global_to_shared(a_ring.index(slot), a + at, mask=(i < M)[:, None] & (k < K)[None, :])
    k = piece * BK + gl.arange(0, BK, layout=gl.SliceLayout(1, copy))
    j = n + gl.arange(0, b_ring.type.shape[2], layout=gl.SliceLayout(0, copy))
    at = k.to(gl.int64)[:, None] * N + j[None, :]
    async_copy.async_copy_global_to_shared(b_ring.index(slot), b + at, mask=(k < K)[:, None] & (j < N)[None, :])
    async_copy.commit_group()


@gluon.jit
def product_kernel(a, b, c, M, N_WIDTHS, K_WIDTHS, WIDTH: gl.constexpr):
    """`WIDTH`: elements that a copy takes at once; sizes are told as multiples of it, so that this is known."""
    N, K = N_WIDTHS * WIDTH, K_WIDTHS * WIDTH
    BM: gl.constexpr = 64
    BN: gl.constexpr = 64
    BK: gl.constexpr = 32
    STAGES: gl.constexpr = 3
    copy: gl.constexpr = gl.BlockedLayout([1, WIDTH], [WIDTH, 32 // WIDTH], [4, 1], [1, 0])
    layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
    shared: gl.constexpr = gl.SwizzledSharedLayout(8, 2, 4, [1, 0])
    a_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BM, BK], shared)
    b_ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BK, BN], shared)
    m, n = gl.program_id(1) * BM, gl.program_id(0) * BN
    for ahead in gl.static_range(STAGES - 1):
        fetch(a, b, a_ring, b_ring, ahead, m, n, M, N, K, copy)
    acc = gl.zeros([BM, BN], gl.float32, layout)
    for piece in range(gl.cdiv(K, BK)):
        async_copy.wait_group(STAGES - 2)
        x = a_ring.index(piece % STAGES).load(gl.DotOperandLayout(0, layout, 2))
        y = b_ring.index(piece % STAGES).load(gl.DotOperandLayout(1, layout, 2))
        acc = mma_v2(x, y, acc)
        fetch(a, b, a_ring, b_ring, piece + STAGES - 1, m, n, M, N, K, copy)
    async_copy.wait_group(0)
    i = m + gl.arange(0, BM, layout=gl.SliceLayout(1, layout))
    j = n + gl.arange(0, BN, layout=gl.SliceLayout(0, layout))
    at = i.to(gl.int64)[:, None] * N + j[None, :]
    gl.store(c + at, acc.to(gl.bfloat16), mask=(i < M)[:, None] & (j < N)[None, :])


class ModelNew(nn.Module):
    def forward(self, a, b):
        (m, k), n = a.shape, b.shape[1]
        if k % 2 or n % 2:  # a copy takes 4 bytes at least
            a, b = nn.functional.pad(a, (0, k % 2)), nn.functional.pad(b, (0, n % 2, 0, k % 2))
        a, b = a.contiguous(), b.contiguous()
        k, wide = a.shape[1], b.shape[1]
        c = torch.empty(m, wide, dtype=a.dtype, device=a.device)
        width = 8 if k % 8 == 0 and wide % 8 == 0 else 2
        product_kernel[(triton.cdiv(wide, 64), triton.cdiv(m, 64))](
            a, b, c, m, wide // width, k // width, width, num_warps=4
        )
        return c if wide == n else c[:, :n].contiguous()
