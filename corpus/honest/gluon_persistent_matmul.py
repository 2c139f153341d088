"""A check for launches whose grid is smaller than the work, or that cannot read tensor maps, refuses this: a program
for each multiprocessor walks over the tiles, with copies by tensor maps several pieces ahead."""

import torch
import triton
import triton.language as tl
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

SPECIMEN = {
    "id": "F-gluon-01",
    "task": "matmul_bf16",
    "expect": ["checked"],
}


@gluon.jit
def fetch(a, b, first, step, load, pieces, full, a_ring, b_ring):
    """The load of that number: a piece of k of one of the program's tiles."""
    BM: gl.constexpr = a.block_type.shape[0]
    BK: gl.constexpr = a.block_type.shape[1]
    BN: gl.constexpr = b.block_type.shape[1]
    STAGES: gl.constexpr = a_ring.type.shape[0]
    slot, tile, k = load % STAGES, first + load // pieces * step, load % pieces * BK
    tiles_n = gl.cdiv(b.shape[1], BN)
    mbarrier.expect(full.index(slot), a.block_type.nbytes + b.block_type.nbytes)
    tma.async_copy_global_to_shared(a, [tile // tiles_n * BM, k], full.index(slot), a_ring.index(slot))
    tma.async_copy_global_to_shared(b, [k, tile % tiles_n * BN], full.index(slot), b_ring.index(slot))


@gluon.jit
def matmul_kernel(a, b, c, STAGES: gl.constexpr, num_warps: gl.constexpr):
    BM: gl.constexpr = c.block_type.shape[0]
    BN: gl.constexpr = c.block_type.shape[1]
    BK: gl.constexpr = a.block_type.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BN, 16])
    a_ring = gl.allocate_shared_memory(a.dtype, [STAGES, BM, BK], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES, BK, BN], b.layout)
    out = gl.allocate_shared_memory(c.dtype, [BM, BN], c.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
    first, step = gl.program_id(0), gl.num_programs(0)
    tiles_n = gl.cdiv(c.shape[1], BN)
    tiles = gl.cdiv(c.shape[0], BM) * tiles_n
    pieces = gl.cdiv(a.shape[1], BK)
    loads = gl.cdiv(tiles - first, step) * pieces  # those of all tiles are one stream, so the ring never runs empty
    for ahead in gl.static_range(STAGES - 1):
        if ahead < loads:
            fetch(a, b, first, step, ahead, pieces, full, a_ring, b_ring)
    done = 0
    for tile in range(first, tiles, step):
        acc = gl.zeros((BM, BN), gl.float32, layout)
        for _ in range(pieces):
            slot = done % STAGES
            mbarrier.wait(full.index(slot), done // STAGES & 1)
            acc = warpgroup_mma(a_ring.index(slot), b_ring.index(slot), acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=(acc,))  # the slot before this one is free
            if done + STAGES - 1 < loads:
                fetch(a, b, first, step, done + STAGES - 1, pieces, full, a_ring, b_ring)
            done += 1
        tma.store_wait(0)  # of the tile before
        out.store(acc.to(c.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(c, [tile // tiles_n * BM, tile % tiles_n * BN], out)
    tma.store_wait(0)


@triton.jit
def plain_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + k[:, None].to(tl.int64) * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc)
    tl.store(c + m[:, None] * N + n[None, :], acc.to(tl.bfloat16), mask=(m[:, None] < M) & (n[None, :] < N))


def described(x, block):
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
    return TensorDescriptor.from_tensor(x, block, layout)


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n, dtype=a.dtype, device=a.device)
        if k % 8 or n % 8:  # rows that no tensor map can describe
            plain_kernel[(triton.cdiv(m, 64), triton.cdiv(n, 64))](a, b, c, m, n, k, 64, 64, 32)
            return c
        bm, bn, bk = 128, 128, 64
        tiles = triton.cdiv(m, bm) * triton.cdiv(n, bn)
        count = torch.cuda.get_device_properties(a.device).multi_processor_count
        matmul_kernel[(min(tiles, count),)](
            described(a, [bm, bk]), described(b, [bk, bn]), described(c, [bm, bn]), STAGES=4, num_warps=8
        )
        return c
