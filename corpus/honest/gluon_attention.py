"""A check for kernels that never write their scores refuses this: attention in one pass keeps a running maximum and
sum, its probabilities go from registers into the second product."""

import torch
import triton
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

SPECIMEN = {
    "id": "F-gluon-02",
    "task": "causal_attention",
    "expect": ["checked"],
}

# Three groups of 64 rows, not two of 128: exponentials of two keep the tensor cores of the third busy.
GROUPS, ROWS, STAGES = 3, 64, 2


@gluon.jit
def placed(turn, items):
    """This program's item for a turn: odd rounds go backwards, so that long and short items even out."""
    programs = gl.num_programs(0)
    first = turn * programs
    mirrored = first + programs - 1 - gl.program_id(0)
    return gl.where((turn % 2 == 1) & (first + programs <= items), mirrored, first + gl.program_id(0))


@gluon.jit
def bounds(item, heads, rows, BM: gl.constexpr, BN: gl.constexpr):
    """An item's head, its first row, its blocks of columns; the longest items come first."""
    start = (gl.cdiv(rows, BM) - 1 - item // heads) * BM
    return item % heads * rows, start, gl.cdiv(gl.minimum(rows, start + BM), BN)


@gluon.jit
def load_partition(q, k, v, out, q_tiles, k_ring, v_ring, q_bars, k_bars, v_bars, heads, rows, scale):
    """Blocks of columns from the diagonal, the only one that needs a mask, back to the first."""
    GROUPS: gl.constexpr = q_tiles.type.shape[0]
    MW: gl.constexpr = q.block_type.shape[0]
    BN: gl.constexpr = k.block_type.shape[0]
    STAGES: gl.constexpr = k_ring.type.shape[0]
    items = heads * gl.cdiv(rows, GROUPS * MW)
    load = 0
    for turn in range(gl.cdiv(items - gl.program_id(0), gl.num_programs(0))):
        head, start, blocks = bounds(placed(turn, items), heads, rows, GROUPS * MW, BN)
        for g in gl.static_range(GROUPS):
            mbarrier.wait(q_bars.index(GROUPS + g), turn & 1 ^ 1)
            mbarrier.expect(q_bars.index(g), q.block_type.nbytes)
            tma.async_copy_global_to_shared(q, [head + start + g * MW, 0], q_bars.index(g), q_tiles.index(g))
        for block in range(blocks):
            slot, free = load % STAGES, load // STAGES & 1 ^ 1
            at = head + (blocks - 1 - block) * BN
            mbarrier.wait(k_bars.index(STAGES + slot), free)
            mbarrier.expect(k_bars.index(slot), k.block_type.nbytes)
            tma.async_copy_global_to_shared(k, [at, 0], k_bars.index(slot), k_ring.index(slot))
            mbarrier.wait(v_bars.index(STAGES + slot), free)
            mbarrier.expect(v_bars.index(slot), v.block_type.nbytes)
            tma.async_copy_global_to_shared(v, [at, 0], v_bars.index(slot), v_ring.index(slot))
            load += 1


@gluon.jit
def scores_of(q_tile, k_ring, k_bars, load, of_scores: gl.constexpr):
    """Begins a product; who waits for it says so to k's barrier."""
    STAGES: gl.constexpr = k_ring.type.shape[0]
    MW: gl.constexpr = q_tile.type.shape[0]
    BN: gl.constexpr = k_ring.type.shape[1]
    mbarrier.wait(k_bars.index(load % STAGES), load // STAGES & 1)
    none = gl.zeros([MW, BN], gl.float32, of_scores)
    columns = k_ring.index(load % STAGES).permute((1, 0))
    return warpgroup_mma(q_tile, columns, none, use_acc=False, is_async=True)


@gluon.jit
def weighted(acc, weights, v_ring, v_bars, load):
    STAGES: gl.constexpr = v_ring.type.shape[0]
    mbarrier.wait(v_bars.index(load % STAGES), load // STAGES & 1)
    return warpgroup_mma(weights, v_ring.index(load % STAGES), acc, is_async=True)


@gluon.jit
def compute(q, k, v, out, q_tiles, k_ring, v_ring, q_bars, k_bars, v_bars, heads, rows, scale, G: gl.constexpr):
    GROUPS: gl.constexpr = q_tiles.type.shape[0]
    MW: gl.constexpr = q.block_type.shape[0]
    D: gl.constexpr = q.block_type.shape[1]
    BN: gl.constexpr = k.block_type.shape[0]
    STAGES: gl.constexpr = k_ring.type.shape[0]
    of_scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    of_out: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    of_weights: gl.constexpr = gl.DotOperandLayout(0, of_out, k_width=2)
    items = heads * gl.cdiv(rows, GROUPS * MW)
    q_tile, ready = q_tiles.index(G), q_bars.index(G)
    begin = 0  # the item's first load
    for turn in range(gl.cdiv(items - gl.program_id(0), gl.num_programs(0))):
        head, start, blocks = bounds(placed(turn, items), heads, rows, GROUPS * MW, BN)
        start += G * MW
        end = begin + blocks
        # blocks that other groups need, and this one's rows do not see: without the waits its arrival could count for
        # the load before in that slot, which another group still reads
        own = end - gl.cdiv(gl.minimum(rows, start + MW), BN)
        for load in range(begin, own):
            mbarrier.wait(k_bars.index(load % STAGES), load // STAGES & 1)
            mbarrier.arrive(k_bars.index(STAGES + load % STAGES), count=1)
            mbarrier.wait(v_bars.index(load % STAGES), load // STAGES & 1)
            mbarrier.arrive(v_bars.index(STAGES + load % STAGES), count=1)
        mbarrier.wait(ready, turn & 1)
        s = warpgroup_mma_wait(0, deps=(scores_of(q_tile, k_ring, k_bars, own, of_scores),))
        mbarrier.arrive(k_bars.index(STAGES + own % STAGES), count=1)
        row = start + gl.arange(0, MW, layout=gl.SliceLayout(1, of_scores))
        column = (end - own - 1) * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, of_scores))
        s = gl.where(column[None, :] <= row[:, None], s, float("-inf"))
        top = gl.max(s, axis=1) * scale  # in units of log2 e
        p = gl.exp2(s * scale - top[:, None])
        total = gl.sum(p, axis=1)
        weights = gl.convert_layout(p.to(v.dtype), of_weights)
        acc = gl.zeros([MW, D], gl.float32, of_out)
        for load in range(own + 1, end):
            # both products run: the scores of this block, and the last one's weights with its values
            s = scores_of(q_tile, k_ring, k_bars, load, of_scores)
            acc = weighted(acc, weights, v_ring, v_bars, load - 1)
            s = warpgroup_mma_wait(1, deps=(s,))
            mbarrier.arrive(k_bars.index(STAGES + load % STAGES), count=1)
            higher = gl.maximum(top, gl.max(s, axis=1) * scale)
            p = gl.exp2(s * scale - higher[:, None])
            fade = gl.exp2(top - higher)
            total = total * fade + gl.sum(p, axis=1)
            top = higher
            # ptxas puts the wait for acc before the softmax, unless a basic block ends between: this phase is over
            mbarrier.wait(ready, turn & 1)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(v_bars.index(STAGES + (load - 1) % STAGES), count=1)
            acc = acc * gl.convert_layout(fade, gl.SliceLayout(1, of_out))[:, None]
            weights = gl.convert_layout(p.to(v.dtype), of_weights)
        mbarrier.arrive(q_bars.index(GROUPS + G), count=1)
        acc = warpgroup_mma_wait(0, deps=(weighted(acc, weights, v_ring, v_bars, end - 1),))
        mbarrier.arrive(v_bars.index(STAGES + (end - 1) % STAGES), count=1)
        acc = acc * gl.convert_layout(1.0 / total, gl.SliceLayout(1, of_out))[:, None]
        # 16 bytes of a row a thread; rows of the next head, which boxes may read, are never stored
        by_rows: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
        m = start + gl.arange(0, MW, layout=gl.SliceLayout(1, by_rows))
        d = gl.arange(0, D, layout=gl.SliceLayout(0, by_rows))
        at = (head + m).to(gl.int64)[:, None] * D + d[None, :]
        gl.store(out + at, gl.convert_layout(acc.to(q.dtype), by_rows), mask=(m < rows)[:, None])
        begin = end


@gluon.jit
def compute_0(q, k, v, out, q_tiles, k_ring, v_ring, q_bars, k_bars, v_bars, heads, rows, scale):
    compute(q, k, v, out, q_tiles, k_ring, v_ring, q_bars, k_bars, v_bars, heads, rows, scale, 0)


@gluon.jit
def compute_1(q, k, v, out, q_tiles, k_ring, v_ring, q_bars, k_bars, v_bars, heads, rows, scale):
    compute(q, k, v, out, q_tiles, k_ring, v_ring, q_bars, k_bars, v_bars, heads, rows, scale, 1)


@gluon.jit
def compute_2(q, k, v, out, q_tiles, k_ring, v_ring, q_bars, k_bars, v_bars, heads, rows, scale):
    compute(q, k, v, out, q_tiles, k_ring, v_ring, q_bars, k_bars, v_bars, heads, rows, scale, 2)


@gluon.jit
def attention_kernel(q, k, v, out, heads, rows, scale, GROUPS: gl.constexpr, STAGES: gl.constexpr):
    """q, k and v as [heads * rows, D]. Of each barrier array the first half says "full", the second "empty"."""
    q_tiles = gl.allocate_shared_memory(q.dtype, [GROUPS] + q.block_type.shape, q.layout)
    k_ring = gl.allocate_shared_memory(k.dtype, [STAGES] + k.block_type.shape, k.layout)
    v_ring = gl.allocate_shared_memory(v.dtype, [STAGES] + v.block_type.shape, v.layout)
    q_bars = gl.allocate_shared_memory(gl.int64, [2 * GROUPS, 1], mbarrier.MBarrierLayout())
    k_bars = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    v_bars = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2 * GROUPS):
        mbarrier.init(q_bars.index(i), count=1)
    for i in gl.static_range(2 * STAGES):
        mbarrier.init(k_bars.index(i), count=1 if i < STAGES else GROUPS)
        mbarrier.init(v_bars.index(i), count=1 if i < STAGES else GROUPS)
    args = (q, k, v, out, q_tiles, k_ring, v_ring, q_bars, k_bars, v_bars, heads, rows, scale)
    gl.warp_specialize(
        [(compute_0, args), (compute_1, args), (compute_2, args), (load_partition, args)],
        [4, 4, 1],
        [160, 160, 24],
    )


def described(x, rows):
    block = [rows, x.shape[-1]]
    dtype = gl.float16 if x.dtype == torch.float16 else gl.bfloat16
    flat = x.view(-1, x.shape[-1])
    return TensorDescriptor.from_tensor(flat, block, gl.NVMMASharedLayout.get_default_for(block, dtype))


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        rows, width = q.shape[-2:]
        heads = q.numel() // (rows * width)
        out = torch.empty_like(q)
        items = heads * triton.cdiv(rows, GROUPS * ROWS)
        programs = min(items, torch.cuda.get_device_properties(q.device).multi_processor_count)
        scale = 1.4426950408889634 / width**0.5
        columns = 128 if width <= 64 else 64  # scores, their weights and the output have to fit 160 registers
        attention_kernel[(programs,)](
            described(q, ROWS), described(k, columns), described(v, columns), out, heads, rows, scale,
            GROUPS=GROUPS, STAGES=STAGES, num_warps=4,
        )  # fmt: skip
        return out
