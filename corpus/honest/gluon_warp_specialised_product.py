"""A check that all threads of a block do the same refuses this: one warp loads for eight that compute, with barriers
that say which slots are full and which are empty."""

import torch
import triton
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

SPECIMEN = {
    "id": "F-gluon-04",
    "task": "matmul_bf16",
    "expect": ["checked"],
}


@gluon.jit
def load_partition(a, b, c, a_ring, b_ring, full, empty, M, N, K):
    BM: gl.constexpr = a.block_type.shape[0]
    BK: gl.constexpr = a.block_type.shape[1]
    BN: gl.constexpr = b.block_type.shape[1]
    STAGES: gl.constexpr = a_ring.type.shape[0]
    m, n = gl.program_id(1) * BM, gl.program_id(0) * BN
    for piece in range(gl.cdiv(K, BK)):
        slot = piece % STAGES
        mbarrier.wait(empty.index(slot), (piece // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(slot), a.block_type.nbytes + b.block_type.nbytes)
        tma.async_copy_global_to_shared(a, [m, piece * BK], full.index(slot), a_ring.index(slot))
        tma.async_copy_global_to_shared(b, [piece * BK, n], full.index(slot), b_ring.index(slot))


@gluon.jit
def product_partition(a, b, c, a_ring, b_ring, full, empty, M, N, K):
    BM: gl.constexpr = a.block_type.shape[0]
    BK: gl.constexpr = a.block_type.shape[1]
    BN: gl.constexpr = b.block_type.shape[1]
    STAGES: gl.constexpr = a_ring.type.shape[0]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BN, 16])
    acc = gl.zeros((BM, BN), gl.float32, layout)
    for piece in range(gl.cdiv(K, BK)):
        slot = piece % STAGES
        mbarrier.wait(full.index(slot), piece // STAGES & 1)
        acc = warpgroup_mma(a_ring.index(slot), b_ring.index(slot), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index(slot), count=1)
    m = gl.program_id(1) * BM + gl.arange(0, BM, layout=gl.SliceLayout(1, layout))
    n = gl.program_id(0) * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, layout))
    at = m.to(gl.int64)[:, None] * N + n[None, :]
    gl.store(c + at, acc.to(gl.bfloat16), mask=(m < M)[:, None] & (n < N)[None, :])


@gluon.jit
def product_kernel(a, b, c, M, N, K, STAGES: gl.constexpr):
    a_ring = gl.allocate_shared_memory(a.dtype, [STAGES] + a.block_type.shape, a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_type.shape, b.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(empty.index(s), count=1)
    shared = (a, b, c, a_ring, b_ring, full, empty, M, N, K)
    gl.warp_specialize([(product_partition, shared), (load_partition, shared)], [1], [24])


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
        c = torch.empty(m, n, dtype=a.dtype, device=a.device)
        product_kernel[(triton.cdiv(n, 128), triton.cdiv(m, 128))](
            described(a[:, :k], [128, 64]), described(b[:, :n], [64, 128]), c, m, n, k, STAGES=3, num_warps=8
        )
        return c
