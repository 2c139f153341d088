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


@gluon.jit
def fetch(k, v, row, load, full, k_ring, v_ring, BN: gl.constexpr, STAGES: gl.constexpr):
    slot = load % STAGES
    mbarrier.expect(full.index(slot), k.block_type.nbytes + v.block_type.nbytes)
    tma.async_copy_global_to_shared(k, [row + load * BN, 0], full.index(slot), k_ring.index(slot))
    tma.async_copy_global_to_shared(v, [row + load * BN, 0], full.index(slot), v_ring.index(slot))


@gluon.jit
def attention_kernel(q, k, v, out, rows, scale, STAGES: gl.constexpr, num_warps: gl.constexpr):
    """q, k and v as [heads * rows, D]: what a box reads of the next head is masked, and never stored."""
    BM: gl.constexpr = q.block_type.shape[0]
    D: gl.constexpr = q.block_type.shape[1]
    BN: gl.constexpr = k.block_type.shape[0]
    of_scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BN, 16])
    of_out: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, D, 16])
    as_operand: gl.constexpr = gl.DotOperandLayout(0, of_out, k_width=2)
    of_row: gl.constexpr = gl.SliceLayout(1, of_scores)
    q_tile = gl.allocate_shared_memory(q.dtype, [BM, D], q.layout)
    k_ring = gl.allocate_shared_memory(k.dtype, [STAGES, BN, D], k.layout)
    v_ring = gl.allocate_shared_memory(v.dtype, [STAGES, BN, D], v.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES + 1, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES + 1):
        mbarrier.init(full.index(s), count=1)

    start = gl.program_id(0) * BM
    head = gl.program_id(1) * rows
    steps = gl.cdiv(gl.minimum(rows, start + BM), BN)  # beyond the diagonal nothing counts
    mbarrier.expect(full.index(STAGES), q.block_type.nbytes)
    tma.async_copy_global_to_shared(q, [head + start, 0], full.index(STAGES), q_tile)
    for ahead in gl.static_range(STAGES - 1):
        if ahead < steps:
            fetch(k, v, head, ahead, full, k_ring, v_ring, BN, STAGES)
    mbarrier.wait(full.index(STAGES), 0)

    row = start + gl.arange(0, BM, layout=of_row)
    column = gl.arange(0, BN, layout=gl.SliceLayout(0, of_scores))
    most = gl.full([BM], float("-inf"), gl.float32, of_row)
    total = gl.zeros([BM], gl.float32, of_row)
    acc = gl.zeros([BM, D], gl.float32, of_out)
    for step in range(steps):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), step // STAGES & 1)
        scores = warpgroup_mma(
            q_tile, k_ring.index(slot).permute((1, 0)), gl.zeros([BM, BN], gl.float32, of_scores), use_acc=False
        )
        seen = (step * BN + column)[None, :] <= row[:, None]
        scores = gl.where(seen, scores * scale, float("-inf"))  # in units of log2 e; column 0 is seen by every row
        higher = gl.maximum(most, gl.max(scores, axis=1))
        weight = gl.exp2(scores - higher[:, None])
        fade = gl.exp2(most - higher)
        total = total * fade + gl.sum(weight, axis=1)
        acc = acc * gl.convert_layout(fade, gl.SliceLayout(1, of_out))[:, None]
        operand = gl.convert_layout(weight.to(v.dtype), as_operand)
        acc = warpgroup_mma(operand, v_ring.index(slot), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        most = higher
        if step + STAGES - 1 < steps:
            fetch(k, v, head, step + STAGES - 1, full, k_ring, v_ring, BN, STAGES)
    acc = acc / gl.convert_layout(total, gl.SliceLayout(1, of_out))[:, None]
    m = start + gl.arange(0, BM, layout=gl.SliceLayout(1, of_out))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, of_out))
    at = (head + m).to(gl.int64)[:, None] * D + d[None, :]
    gl.store(out + at, acc.to(q.dtype), mask=(m < rows)[:, None])


def described(x, rows):
    block = [rows, x.shape[-1]]
    dtype = gl.float16 if x.dtype == torch.float16 else gl.bfloat16
    flat = x.view(-1, x.shape[-1])
    return TensorDescriptor.from_tensor(flat, block, gl.NVMMASharedLayout.get_default_for(block, dtype))


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        rows, width = q.shape[-2:]
        out = torch.empty_like(q)
        bm, bn = 128, 128 if width <= 64 else 64
        scale = 1.4426950408889634 / width**0.5
        attention_kernel[(triton.cdiv(rows, bm), q.numel() // (rows * width))](
            described(q, bm), described(k, bn), described(v, bn), out, rows, scale, STAGES=2, num_warps=8
        )
        return out
