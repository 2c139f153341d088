# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, E501, N803
# says: flash attention: a block of queries a program, softmax online, blocks above the diagonal skipped, heads share keys
# fits: attention(q, k, v, True) = F.scaled_dot_product_attention(q, k, v, is_causal=True) where q: B H S D, k: B H S D, v: B H S D
# fits: attention(q, k, v, True) = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) where q: B H S D, k: B G S D, v: B G S D
# fits: attention(q, k, v, False) = F.scaled_dot_product_attention(q, k, v) where q: B H S D, k: B H T D, v: B H T D
# search: BLOCK_M = 64 128
# search: BLOCK_N = 32 64 128
# search: PROGRAMS_PER_SM = 1 2 3
# search: NUM_WARPS = 4 8
# search: NUM_STAGES = 2 3 4
# search: SPECIALISED = 0 1
"""Attention forward without its matrix of scores: a program keeps a block of queries and walks over the keys.

Queries, keys and values come by TMA, which takes addresses and bounds off the threads: a 128 x 128 x 128 tile needs 220
registers a thread, 255 with pointers (then 1082 us for 8192 positions of 32 heads on an H200, cuDNN 924). Descriptors of
keys have a dimension for the head, so that rows beyond its end are zeros and not the next head's. A fixed grid makes its
descriptors once and takes blocks longest first, every other round in reverse order, so that programs end together.

Blocks left of the diagonal need no mask, blocks on it do, blocks right of it are never read. SPECIALISED gives loads to
a warp group of their own, and each of two others half of the queries, so that one's softmax runs under the other's
products; it walks in a single loop with the mask in it, for Triton 3.6 and 3.7 specialise no kernel with a second
product loop. Where TMA cannot read or the tensor cores have no such type, `plain_kernel` does the work.
"""

import torch
import triton
import triton.language as tl

BLOCK_M = 128
BLOCK_N = 128
PROGRAMS_PER_SM = 2  # as many as fit run at once, the others after them
NUM_WARPS = 8  # 4 are meant where SPECIALISED: the compiler adds two groups of 4
NUM_STAGES = 2
SPECIALISED = 0


@triton.jit
def shown(item, items):
    """The block for a turn: odd rounds of the grid go backwards, unless a round is not full."""
    programs = tl.num_programs(0)
    turn = item // programs
    mirrored = turn * programs + (programs - 1 - item % programs)
    return tl.where((turn % 2 == 1) & ((turn + 1) * programs <= items), mirrored, item)


@triton.jit
def walk(
    acc, top, total, q, k, v, own, i, first, end, keys, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, SPECIALISED: tl.constexpr,
):  # fmt: skip
    for start in tl.range(first, end, BN, warp_specialize=SPECIALISED):
        s = tl.dot(q, k.load([own, start, 0]).reshape(BN, D).T)
        if MASKED:
            j = start + tl.arange(0, BN)
            # a query that is kept sees no key beyond the end: its own number is below it
            seen = j[None, :] <= i[:, None] if CAUSAL else j[None, :] < keys
            s = tl.where(seen, s, -float("inf"))
        # the scale (with log2 e in it) is applied after the subtraction, in one multiply-add
        higher = tl.maximum(top, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - higher[:, None])
        shrink = tl.exp2(top - higher)
        values = v.load([own, start, 0]).reshape(BN, D)
        acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None])
        total = total * shrink + tl.sum(p, 1)
        top = higher
    return acc, top, total


@triton.jit
def tma_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, count, heads, shared, queries, keys, scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SPECIALISED: tl.constexpr,
):  # fmt: skip
    q_rows = tl.make_tensor_descriptor(q_ptr, [count * queries, D], [D, 1], [BM, D])
    k = tl.make_tensor_descriptor(k_ptr, [count // shared, keys, D], [keys.to(tl.int64) * D, D, 1], [1, BN, D])
    v = tl.make_tensor_descriptor(v_ptr, [count // shared, keys, D], [keys.to(tl.int64) * D, D, 1], [1, BN, D])
    high = tl.cdiv(queries, BM)
    for turn in tl.range(tl.program_id(0), count * high, tl.num_programs(0)):
        item = shown(turn, count * high)
        head = item % count
        row = (high - 1 - item // count) * BM
        own = head // heads * (heads // shared) + head % heads // shared  # the head of keys that this head sees
        i = row + tl.arange(0, BM)
        q = q_rows.load([head * queries + row, 0])  # rows of the next head at a ragged end: they are not stored
        acc = tl.zeros((BM, D), tl.float32)
        top = tl.full((BM,), -float("inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        bare = (tl.minimum(row, keys) if CAUSAL else keys) // BN * BN
        end = tl.minimum(row + BM, keys) if CAUSAL else keys
        if SPECIALISED:
            acc, top, total = walk(acc, top, total, q, k, v, own, i, 0, end, keys, scale, True, CAUSAL, D, BN, True)
        else:
            acc, top, total = walk(acc, top, total, q, k, v, own, i, 0, bare, keys, scale, False, CAUSAL, D, BN, False)
            acc, top, total = walk(acc, top, total, q, k, v, own, i, bare, end, keys, scale, True, CAUSAL, D, BN, False)
        at = head.to(tl.int64) * queries * D + i[:, None].to(tl.int64) * D + tl.arange(0, D)[None, :]
        y = acc * (1.0 / total)[:, None]
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=i[:, None] < queries)


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
def plain_kernel(
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


def allocate(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


def attention(q, k, v, causal):
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    batch, heads, queries, depth = q.shape
    keys = k.shape[2]
    y = torch.empty_like(q)
    scale = depth**-0.5 * 1.4426950408889634
    tensors = (q, k, v, y)
    if q.element_size() == 2 and depth in (16, 32, 64, 128, 256) and all(t.data_ptr() % 16 == 0 for t in tensors):
        triton.set_allocator(allocate)  # descriptors lie in memory that the launch asks for
        room = (220 << 10) // depth // 2 - BLOCK_M  # rows of shared memory beside the queries
        # of short heads two programs fit where scores are no more than 128 x 64: 120 registers, 175 with 128 x 128
        bn = BLOCK_N if SPECIALISED or depth > 64 else min(BLOCK_N, 64)
        bn = min(bn, triton.next_power_of_2(room // 4 + 1) // 2)
        programs = PROGRAMS_PER_SM * torch.cuda.get_device_properties(q.device).multi_processor_count
        tma_kernel[(min(programs, batch * heads * triton.cdiv(queries, BLOCK_M)),)](
            *tensors, batch * heads, heads, heads // k.shape[1], queries, keys, scale,
            CAUSAL=causal, D=depth, BM=BLOCK_M, BN=bn, SPECIALISED=SPECIALISED != 0,
            num_warps=4 if SPECIALISED else NUM_WARPS, num_stages=max(1, min(NUM_STAGES, room // (2 * bn))),
        )  # fmt: skip
        return y
    bm = min(64, max(16, triton.next_power_of_2(queries)))
    bn = min(64, max(16, triton.next_power_of_2(keys)))
    plain_kernel[(batch * heads, triton.cdiv(queries, bm))](
        *tensors, heads, heads // k.shape[1], queries, keys, scale,
        CAUSAL=causal, D=depth, DEPTH=max(16, triton.next_power_of_2(depth)), BM=bm, BN=bn, num_warps=4, num_stages=2,
    )  # fmt: skip
    return y
