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

# Tensor cores add in fewer bits than float32 has: sums of CHUNK pieces go to an accumulator in registers. Both have to
# fit beside each other, so a tile is 128 wide and not 256.
BM, BN, BK, STAGES, CHUNK = 128, 128, 64, 6, 4


@gluon.jit
def tile_of(x, lines, length, line_step, step, BLOCK: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr):
    """This program's block of lines (rows of a, columns of b), their numbers and the places in a line."""
    line = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, layout))
    i = gl.program_id(1) * WIDTH + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
    at = line.to(gl.int64)[:, None] * line_step + i.to(gl.int64)[None, :] * step
    return gl.load(x + at, mask=(line < lines)[:, None] & (i < length)[None, :], other=0.0), line


@gluon.jit
def largest_kernel(
    x, most, lines, length, line_step, step, BLOCK: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr
):
    """The bits of the largest finite magnitude of each line: they are in the order of the numbers."""
    v, line = tile_of(x, lines, length, line_step, step, BLOCK, WIDTH, layout)
    bits = v.to(gl.int32, bitcast=True) & 0x7FFFFFFF
    bits = gl.where(bits < 0x7F800000, bits, 0)
    gl.atomic_max(most + line, gl.max(bits, axis=1), mask=line < lines)


@gluon.jit
def split_kernel(
    x, most, halves, back, lines, length, pitch, line_step, step,
    BLOCK: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr, written: gl.constexpr,
):  # fmt: skip
    """Lines as rows of 2 * pitch halves, the upper ones first; zeros fill up. `back` undoes a line's scale."""
    v, line = tile_of(x, lines, length, line_step, step, BLOCK, WIDTH, layout)
    exponent = gl.load(most + line, mask=line < lines, other=0) >> 23
    exponent = gl.minimum(gl.maximum(exponent, 15), 253)  # the largest of a line becomes 2**14 and more
    v = v * ((268 - exponent) << 23).to(gl.float32, bitcast=True)[:, None]
    if gl.program_id(1) == 0:
        gl.store(back + line, ((exponent - 14) << 23).to(gl.float32, bitcast=True), mask=line < lines)
    high = v.to(gl.float16)
    low = gl.convert_layout((v - high.to(gl.float32)).to(gl.float16), written)
    row = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, written))
    i = gl.program_id(1) * WIDTH + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, written))
    at = row.to(gl.int64)[:, None] * (2 * pitch) + i[None, :]
    inside = (row < lines)[:, None] & (i < pitch)[None, :]
    gl.store(halves + at, gl.convert_layout(high, written), mask=inside)
    gl.store(halves + at + pitch, low, mask=inside)


@gluon.jit
def place(tile, M, N, BM: gl.constexpr, BN: gl.constexpr):
    """Tiles in groups of eight rows: programs that run together share more of a and b in the L2."""
    high, wide = gl.cdiv(M, BM), gl.cdiv(N, BN)
    group, inner = tile // (8 * wide), tile % (8 * wide)
    height = gl.minimum(high - group * 8, 8)
    return (group * 8 + inner % height) * BM, inner // height * BN


@gluon.jit
def load_partition(a, b, c, a_ring, b_ring, full, empty, of_rows, of_columns, M, N, K):
    """The small products first, low * high and high * low; high * high last."""
    MW: gl.constexpr = a.block_type.shape[0]
    BK: gl.constexpr = a.block_type.shape[1]
    BN: gl.constexpr = b.block_type.shape[0]
    STAGES: gl.constexpr = b_ring.type.shape[0]
    steps = K // BK
    load = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, 2 * MW) * gl.cdiv(N, BN), gl.num_programs(0)):
        m, n = place(tile, M, N, 2 * MW, BN)
        for piece in range(3 * steps):
            slot = load % STAGES
            at = piece % steps * BK
            of_a = at + gl.where(piece < steps, K, 0)
            of_b = at + gl.where(piece // steps == 1, K, 0)
            mbarrier.wait(empty.index(slot), load // STAGES & 1 ^ 1)
            mbarrier.expect(full.index(slot), 2 * a.block_type.nbytes + b.block_type.nbytes)
            tma.async_copy_global_to_shared(a, [m, of_a], full.index(slot), a_ring.index(slot * 2))
            tma.async_copy_global_to_shared(b, [n, of_b], full.index(slot), b_ring.index(slot))
            tma.async_copy_global_to_shared(a, [m + MW, of_a], full.index(slot), a_ring.index(slot * 2 + 1))
            load += 1


@gluon.jit
def summed(first, last, a_ring, b_ring, full, empty, layout: gl.constexpr, G: gl.constexpr):
    """The sum of the products of those loads; a slot is empty when the next product has begun and its own has ended."""
    STAGES: gl.constexpr = b_ring.type.shape[0]
    MW: gl.constexpr = a_ring.type.shape[1]
    BN: gl.constexpr = b_ring.type.shape[1]
    acc = gl.zeros((MW, BN), gl.float32, layout)
    slot = first % STAGES
    mbarrier.wait(full.index(slot), first // STAGES & 1)
    columns = b_ring.index(slot).permute((1, 0))
    acc = warpgroup_mma(a_ring.index(slot * 2 + G), columns, acc, use_acc=False, is_async=True)
    acc = warpgroup_mma_wait(1, deps=(acc,))
    for load in range(first + 1, last):
        slot = load % STAGES
        mbarrier.wait(full.index(slot), load // STAGES & 1)
        acc = warpgroup_mma(a_ring.index(slot * 2 + G), b_ring.index(slot).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))
        mbarrier.arrive(empty.index((load - 1) % STAGES), count=1)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(empty.index((last - 1) % STAGES), count=1)
    return acc


@gluon.jit
def compute(a, b, c, a_ring, b_ring, full, empty, of_rows, of_columns, M, N, K, CHUNK: gl.constexpr, G: gl.constexpr):
    MW: gl.constexpr = a.block_type.shape[0]
    BK: gl.constexpr = a.block_type.shape[1]
    BN: gl.constexpr = b.block_type.shape[0]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    steps = K // BK
    load = 0
    for tile in range(gl.program_id(0), gl.cdiv(M, 2 * MW) * gl.cdiv(N, BN), gl.num_programs(0)):
        m, n = place(tile, M, N, 2 * MW, BN)
        acc = summed(load, load + 2 * steps, a_ring, b_ring, full, empty, layout, G)
        end = load + 3 * steps
        for first in range(load + 2 * steps, end, CHUNK):
            acc += summed(first, gl.minimum(first + CHUNK, end), a_ring, b_ring, full, empty, layout, G)
        load = end
        i = m + G * MW + gl.arange(0, MW, layout=gl.SliceLayout(1, layout))
        j = n + gl.arange(0, BN, layout=gl.SliceLayout(0, layout))
        acc *= gl.load(of_rows + i, mask=i < M, other=0.0)[:, None]
        acc *= gl.load(of_columns + j, mask=j < N, other=0.0)[None, :]
        gl.store(c + i.to(gl.int64)[:, None] * N + j[None, :], acc, mask=(i < M)[:, None] & (j < N)[None, :])


@gluon.jit
def compute_0(a, b, c, a_ring, b_ring, full, empty, of_rows, of_columns, M, N, K, CHUNK: gl.constexpr):
    compute(a, b, c, a_ring, b_ring, full, empty, of_rows, of_columns, M, N, K, CHUNK, 0)


@gluon.jit
def compute_1(a, b, c, a_ring, b_ring, full, empty, of_rows, of_columns, M, N, K, CHUNK: gl.constexpr):
    compute(a, b, c, a_ring, b_ring, full, empty, of_rows, of_columns, M, N, K, CHUNK, 1)


@gluon.jit
def product_kernel(a, b, c, of_rows, of_columns, M, N, K, STAGES: gl.constexpr, CHUNK: gl.constexpr):
    a_ring = gl.allocate_shared_memory(a.dtype, [2 * STAGES] + a.block_type.shape, a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_type.shape, b.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(empty.index(s), count=2)
    gl.warp_specialize(
        [
            (compute_0, (a, b, c, a_ring, b_ring, full, empty, of_rows, of_columns, M, N, K, CHUNK)),
            (compute_1, (a, b, c, a_ring, b_ring, full, empty, of_rows, of_columns, M, N, K, CHUNK)),
            (load_partition, (a, b, c, a_ring, b_ring, full, empty, of_rows, of_columns, M, N, K)),
        ],
        [4, 1],
        [240, 24],
    )


def split(x):
    """The halves of x's rows, [rows, 2 * pitch], and the factors that undo the rows' scales."""
    lines, length = x.shape
    pitch = triton.cdiv(length, BK) * BK
    halves = torch.empty(lines, 2 * pitch, dtype=torch.float16, device=x.device)
    back = torch.empty(lines, dtype=torch.float32, device=x.device)
    most = torch.zeros(lines, dtype=torch.int32, device=x.device)
    if x.stride(1) == 1:
        block, width = 16, 256
        read = gl.BlockedLayout([1, 4], [1, 32], [8, 1], [1, 0])
        written = gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0])
    else:  # b.t(): neighbours in memory are of different lines
        block, width = 64, 64
        read = gl.BlockedLayout([4, 1], [16, 2], [1, 8], [0, 1])
        written = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    grid = (triton.cdiv(lines, block), triton.cdiv(pitch, width))
    largest_kernel[grid](x, most, lines, length, x.stride(0), x.stride(1), block, width, read, num_warps=8)
    split_kernel[grid](
        x, most, halves, back, lines, length, pitch, x.stride(0), x.stride(1), block, width, read, written, num_warps=8
    )
    return halves, back


def described(x, block):
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, gl.float16))


class ModelNew(nn.Module):
    def forward(self, a, b):
        m, n = a.shape[0], b.shape[1]
        (a_halves, of_rows), (b_halves, of_columns) = split(a), split(b.t())
        c = torch.empty(m, n, dtype=a.dtype, device=a.device)
        tiles = triton.cdiv(m, BM) * triton.cdiv(n, BN)
        programs = min(tiles, torch.cuda.get_device_properties(a.device).multi_processor_count)
        product_kernel[(programs,)](
            described(a_halves, [BM // 2, BK]), described(b_halves, [BN, BK]), c, of_rows, of_columns,
            m, n, a_halves.shape[1] // 2, STAGES=STAGES, CHUNK=CHUNK, num_warps=4,
        )  # fmt: skip
        return c
