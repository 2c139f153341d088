# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, E501, N803
# says: flash attention: a block of queries a program, softmax online, blocks above the diagonal skipped, heads share keys
# fits: attention(q, k, v, True) = F.scaled_dot_product_attention(q, k, v, is_causal=True) where q: B H S D, k: B H S D, v: B H S D
# fits: attention(q, k, v, True) = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) where q: B H S D, k: B G S D, v: B G S D
# fits: attention(q, k, v, False) = F.scaled_dot_product_attention(q, k, v) where q: B H S D, k: B H T D, v: B H T D
# search: BLOCK_M = 64 128 256
# search: BLOCK_N = 32 64 128
# search: NUM_WARPS = 4 8
# search: NUM_STAGES = 2 3 4
"""Attention forward without its matrix of scores: each program keeps a block of queries and walks over the keys.

Blocks left of the diagonal need no mask, blocks on it do, blocks right of it are never read. Queries of the end of the
sequence come first: they take longest, and a long program that starts last would run alone.
"""

import torch
import triton
import triton.language as tl

BLOCK_M = 128
BLOCK_N = 128
NUM_WARPS = 8
NUM_STAGES = 3


@triton.jit
def attend(
    acc, top, total, q, k, v, i, first, end, keys, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, DEPTH)
    for start in tl.range(first, end, BN):
        j = start + tl.arange(0, BN)
        at = j[:, None].to(tl.int64) * D + d[None, :]
        inside = d[None, :] < D
        if MASKED:
            inside = inside & (j[:, None] < keys)
        s = tl.dot(q, tl.trans(tl.load(k + at, mask=inside, other=0.0)), input_precision="tf32x3")
        if MASKED:
            seen = j[None, :] < keys
            if CAUSAL:
                seen = seen & (j[None, :] <= i[:, None])
            s = tl.where(seen, s, -float("inf"))
        # the scale (with log2 e in it) is applied after the subtraction, in one multiply-add
        higher = tl.maximum(top, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 1)
        values = tl.load(v + at, mask=inside, other=0.0)
        acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None], input_precision="tf32x3")
        top = higher
    return acc, top, total


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, heads, shared, queries, keys, scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    head = tl.program_id(0).to(tl.int64)  # of all batches
    own = head // heads * (heads // shared) + head % heads // shared  # the head of keys that this head sees
    i = block * BM + tl.arange(0, BM)
    d = tl.arange(0, DEPTH)
    at = head * queries * D + i[:, None].to(tl.int64) * D + d[None, :]
    inside = (i[:, None] < queries) & (d[None, :] < D)
    q = tl.load(q_ptr + at, mask=inside, other=0.0)
    k, v = k_ptr + own * keys * D, v_ptr + own * keys * D
    acc = tl.zeros((BM, DEPTH), tl.float32)
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    bare = (tl.minimum(block * BM, keys) if CAUSAL else keys) // BN * BN
    end = tl.minimum((block + 1) * BM, keys) if CAUSAL else keys
    acc, top, total = attend(acc, top, total, q, k, v, i, 0, bare, keys, scale, False, CAUSAL, D, DEPTH, BN)
    acc, top, total = attend(acc, top, total, q, k, v, i, bare, end, keys, scale, True, CAUSAL, D, DEPTH, BN)
    tl.store(y_ptr + at, (acc / total[:, None]).to(y_ptr.dtype.element_ty), mask=inside)


def attention(q, k, v, causal):
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    batch, heads, queries, depth = q.shape
    y = torch.empty_like(q)
    bm = min(BLOCK_M, max(16, triton.next_power_of_2(queries)))
    bn = min(BLOCK_N, max(16, triton.next_power_of_2(k.shape[2])))
    attention_kernel[(batch * heads, triton.cdiv(queries, bm))](
        q, k, v, y, heads, heads // k.shape[1], queries, k.shape[2], depth**-0.5 * 1.4426950408889634,
        CAUSAL=causal, D=depth, DEPTH=max(16, triton.next_power_of_2(depth)), BM=bm, BN=bn,
        num_warps=NUM_WARPS, num_stages=NUM_STAGES,
    )  # fmt: skip
    return y
