"""A check that all threads of a block do the same refuses this: one warp loads for eight that compute, with barriers
that say which slots are full and which are empty."""

import torch
import triton
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
    "id": "F-gluon-04",
    "task": "matmul_bf16",
    "expect": ["checked"],
}

# A tile is stored in two halves, one after the other through the same memory: that leaves room for a fourth stage.
BM, BN, BK, STAGES = 128, 256, 64, 4


@gluon.jit
def place(tile, M, N, BM: gl.constexpr, BN: gl.constexpr):
    """Tiles in groups of four rows: programs that run together share more of a and b in the L2."""
    high, wide = gl.cdiv(M, BM), gl.cdiv(N, BN)
    group, inner = tile // (4 * wide), tile % (4 * wide)
    height = gl.minimum(high - group * 4, 4)
    return (group * 4 + inner % height) * BM, inner // height * BN


@gluon.jit
def load_partition(a, b, c, a_ring, b_ring, c_tiles, full, empty, M, N, K):
    """Runs ahead into the next tile while the others still store this one."""
    MW: gl.constexpr = a.block_type.shape[0]
    BK: gl.constexpr = a.block_type.shape[1]
    BN: gl.constexpr = b.block_type.shape[1]
    STAGES: gl.constexpr = b_ring.type.shape[0]
    load = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, 2 * MW) * gl.cdiv(N, BN), gl.num_programs(0)):
        m, n = place(tile, M, N, 2 * MW, BN)
        for at in range(0, K, BK):
            slot = load % STAGES
            mbarrier.wait(empty.index(slot), load // STAGES & 1 ^ 1)
            mbarrier.expect(full.index(slot), 2 * a.block_type.nbytes + b.block_type.nbytes)
            tma.async_copy_global_to_shared(a, [m, at], full.index(slot), a_ring.index(slot * 2))
            tma.async_copy_global_to_shared(b, [at, n], full.index(slot), b_ring.index(slot))
            tma.async_copy_global_to_shared(a, [m + MW, at], full.index(slot), a_ring.index(slot * 2 + 1))
            load += 1


@gluon.jit
def compute(a, b, c, a_ring, b_ring, c_tiles, full, empty, M, N, K, G: gl.constexpr):
    """64 rows of each tile. A slot is empty when the next product has begun and its own has ended."""
    MW: gl.constexpr = a.block_type.shape[0]
    BK: gl.constexpr = a.block_type.shape[1]
    BN: gl.constexpr = b.block_type.shape[1]
    STAGES: gl.constexpr = b_ring.type.shape[0]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    of_half: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN // 2, 16])
    load = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, 2 * MW) * gl.cdiv(N, BN), gl.num_programs(0)):
        m, n = place(tile, M, N, 2 * MW, BN)
        acc = gl.zeros((MW, BN), gl.float32, layout)
        slot = load % STAGES
        mbarrier.wait(full.index(slot), load // STAGES & 1)
        acc = warpgroup_mma(a_ring.index(slot * 2 + G), b_ring.index(slot), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))
        end = load + gl.cdiv(K, BK)
        for later in range(load + 1, end):
            slot = later % STAGES
            mbarrier.wait(full.index(slot), later // STAGES & 1)
            acc = warpgroup_mma(a_ring.index(slot * 2 + G), b_ring.index(slot), acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=(acc,))
            mbarrier.arrive(empty.index((later - 1) % STAGES), count=1)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index((end - 1) % STAGES), count=1)
        load = end
        halves = acc.reshape([MW, 2, BN // 2]).permute((0, 2, 1)).split()
        for i in gl.static_range(2):
            tma.store_wait(0)
            c_tiles.index(G).store(gl.convert_layout(halves[i].to(c.dtype), of_half))
            fence_async_shared()
            tma.async_copy_shared_to_global(c, [m + G * MW, n + i * (BN // 2)], c_tiles.index(G))
    tma.store_wait(0)


@gluon.jit
def compute_0(a, b, c, a_ring, b_ring, c_tiles, full, empty, M, N, K):
    compute(a, b, c, a_ring, b_ring, c_tiles, full, empty, M, N, K, 0)


@gluon.jit
def compute_1(a, b, c, a_ring, b_ring, c_tiles, full, empty, M, N, K):
    compute(a, b, c, a_ring, b_ring, c_tiles, full, empty, M, N, K, 1)


@gluon.jit
def product_kernel(a, b, c, M, N, K, STAGES: gl.constexpr):
    a_ring = gl.allocate_shared_memory(a.dtype, [2 * STAGES] + a.block_type.shape, a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_type.shape, b.layout)
    c_tiles = gl.allocate_shared_memory(c.dtype, [2] + c.block_type.shape, c.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(empty.index(s), count=2)
    shared = (a, b, c, a_ring, b_ring, c_tiles, full, empty, M, N, K)
    gl.warp_specialize([(compute_0, shared), (compute_1, shared), (load_partition, shared)], [4, 1], [240, 24])


def padded(x, multiple):
    """Rows that tensor maps can describe."""
    missing = -x.shape[1] % multiple
    return nn.functional.pad(x, (0, missing)) if missing else x


def described(x, block):
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16))


class ModelNew(nn.Module):
    def forward(self, a, b):
        (m, k), n = a.shape, b.shape[1]
        a, b = padded(a.contiguous(), 8), padded(b.contiguous(), 8)
        c = torch.empty(m, b.shape[1], dtype=a.dtype, device=a.device)
        tiles = triton.cdiv(m, BM) * triton.cdiv(n, BN)
        programs = min(tiles, torch.cuda.get_device_properties(a.device).multi_processor_count)
        product_kernel[(programs,)](
            described(a[:, :k], [BM // 2, BK]), described(b[:, :n], [BK, BN]), described(c, [BM // 2, BN // 2]),
            m, n, k, STAGES=STAGES, num_warps=4,
        )  # fmt: skip
        return c if c.shape[1] == n else c[:, :n].contiguous()
