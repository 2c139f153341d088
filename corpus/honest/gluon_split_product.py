"""A check for half-precision products in a float32 task refuses this: each matrix is split into two float16, its rows
and columns scaled by powers of two, so that 22 bits count; one product of halves would not be enough."""

import torch
import triton
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

SPECIMEN = {
    "id": "F-gluon-03",
    "task": "matmul",
    "expect": ["checked"],
}


@gluon.jit
def scaled(x, exponent):
    """x * 2**exponent, in two steps: one power of two may be none of float32's."""
    first = gl.minimum(gl.maximum(exponent, -120), 120)
    x *= ((first + 127) << 23).to(gl.float32, bitcast=True)
    return x * ((exponent - first + 127) << 23).to(gl.float32, bitcast=True)


@gluon.jit
def split_kernel(x, high, low, scales, lines, length, line_step, step, pitch, BLOCK: gl.constexpr, ALONG: gl.constexpr):
    """Lines (rows of a, columns of b) of `length` floats, `step` apart; halves keep their place, in rows of `pitch`."""
    layout: gl.constexpr = (
        gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
        if ALONG
        else gl.BlockedLayout([4, 1], [16, 2], [1, 4], [0, 1])
    )
    line = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, layout))
    i = gl.arange(0, 64, layout=gl.SliceLayout(0, layout))
    most = gl.zeros([BLOCK], gl.float32, gl.SliceLayout(1, layout))
    for start in range(0, length, 64):
        inside = (line < lines)[:, None] & (start + i < length)[None, :]
        at = line.to(gl.int64)[:, None] * line_step + (start + i).to(gl.int64)[None, :] * step
        most = gl.maximum(most, gl.max(gl.abs(gl.load(x + at, mask=inside, other=0.0)), axis=1))
    exponent = 14 - ((most.to(gl.int32, bitcast=True) >> 23) - 127)  # the largest of a line is 2**14 and more
    gl.store(scales + line, exponent, mask=line < lines)
    line_pitch = pitch if ALONG else 1
    own_step = 1 if ALONG else pitch
    for start in range(0, length, 64):
        inside = (line < lines)[:, None] & (start + i < length)[None, :]
        at = line.to(gl.int64)[:, None] * line_step + (start + i).to(gl.int64)[None, :] * step
        v = scaled(gl.load(x + at, mask=inside, other=0.0), exponent[:, None])
        half = v.to(gl.float16)
        to = line.to(gl.int64)[:, None] * line_pitch + (start + i).to(gl.int64)[None, :] * own_step
        gl.store(high + to, half, mask=inside)
        gl.store(low + to, (v - half.to(gl.float32)).to(gl.float16), mask=inside)


@gluon.jit
def fetch(a, b, m, n, load, full, a_ring, b_ring, M, K, BK: gl.constexpr, STAGES: gl.constexpr):
    """Both halves of a piece: those of a lie in rows M apart, those of b in rows K apart."""
    slot = load % STAGES
    mbarrier.expect(full.index(slot), 2 * (a.block_type.nbytes + b.block_type.nbytes))
    for half in gl.static_range(2):
        tma.async_copy_global_to_shared(a, [half, m, load * BK], full.index(slot), a_ring.index(slot * 2 + half))
        tma.async_copy_global_to_shared(b, [half, load * BK, n], full.index(slot), b_ring.index(slot * 2 + half))


@gluon.jit
def product_kernel(a, b, c, of_rows, of_columns, M, N, K, STAGES: gl.constexpr, num_warps: gl.constexpr):
    BM: gl.constexpr = a.block_type.shape[1]
    BK: gl.constexpr = a.block_type.shape[2]
    BN: gl.constexpr = b.block_type.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BN, 16])
    a_ring = gl.allocate_shared_memory(a.dtype, [2 * STAGES, 1, BM, BK], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [2 * STAGES, 1, BK, BN], b.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
    m, n = gl.program_id(1) * BM, gl.program_id(0) * BN
    pieces = gl.cdiv(K, BK)
    for ahead in gl.static_range(STAGES - 1):
        if ahead < pieces:
            fetch(a, b, m, n, ahead, full, a_ring, b_ring, M, K, BK, STAGES)
    acc = gl.zeros((BM, BN), gl.float32, layout)
    for piece in range(pieces):
        slot = piece % STAGES
        mbarrier.wait(full.index(slot), piece // STAGES & 1)
        a_high, a_low = a_ring.index(slot * 2).reshape([BM, BK]), a_ring.index(slot * 2 + 1).reshape([BM, BK])
        b_high, b_low = b_ring.index(slot * 2).reshape([BK, BN]), b_ring.index(slot * 2 + 1).reshape([BK, BN])
        acc = warpgroup_mma(a_low, b_high, acc, is_async=True)
        acc = warpgroup_mma(a_high, b_low, acc, is_async=True)
        acc = warpgroup_mma(a_high, b_high, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        if piece + STAGES - 1 < pieces:
            fetch(a, b, m, n, piece + STAGES - 1, full, a_ring, b_ring, M, K, BK, STAGES)
    i = m + gl.arange(0, BM, layout=gl.SliceLayout(1, layout))
    j = n + gl.arange(0, BN, layout=gl.SliceLayout(0, layout))
    acc = scaled(acc, -gl.load(of_rows + i, mask=i < M, other=0)[:, None])
    acc = scaled(acc, -gl.load(of_columns + j, mask=j < N, other=0)[None, :])
    gl.store(c + i.to(gl.int64)[:, None] * N + j[None, :], acc, mask=(i < M)[:, None] & (j < N)[None, :])


def described(x, block):
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, gl.float16))


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        (m, k), n = a.shape, b.shape[1]
        k_pitch, n_pitch = triton.cdiv(k, 8) * 8, triton.cdiv(n, 8) * 8  # rows that tensor maps can describe
        halves = {"dtype": torch.float16, "device": a.device}
        a_halves, b_halves = torch.empty(2, m, k_pitch, **halves), torch.empty(2, k, n_pitch, **halves)
        of_rows, of_columns = (torch.empty(size, dtype=torch.int32, device=a.device) for size in (m, n))
        split_kernel[(triton.cdiv(m, 32),)](
            a, a_halves[0], a_halves[1], of_rows, m, k, k, 1, k_pitch, BLOCK=32, ALONG=True, num_warps=4
        )
        split_kernel[(triton.cdiv(n, 32),)](
            b, b_halves[0], b_halves[1], of_columns, n, k, 1, n, n_pitch, BLOCK=32, ALONG=False, num_warps=4
        )
        c = torch.empty(m, n, dtype=a.dtype, device=a.device)
        product_kernel[(triton.cdiv(n, 128), triton.cdiv(m, 128))](
            described(a_halves[:, :, :k], [1, 128, 64]), described(b_halves[:, :, :n], [1, 64, 128]),
            c, of_rows, of_columns, m, n, k, STAGES=3, num_warps=8,
        )  # fmt: skip
        return c
