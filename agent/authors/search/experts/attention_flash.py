# says: flash attention: a block of queries a program, softmax online, blocks above the diagonal skipped, heads share keys
# fits: attention(q, k, v, True) = F.scaled_dot_product_attention(q, k, v, is_causal=True) where q: B H S D, k: B H S D, v: B H S D
# fits: attention(q, k, v, True) = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) where q: B H S D, k: B G S D, v: B G S D
# fits: attention(q, k, v, False) = F.scaled_dot_product_attention(q, k, v) where q: B H S D, k: B H T D, v: B H T D
# search: BLOCK_M = 64 128
# search: BLOCK_N = 64 128
# search: NUM_WARPS = 4 8
# search: NUM_STAGES = 2 3 4
# search: SPECIALISED = 0 1
"""Attention forward without its matrix of scores: a program keeps a block of queries and walks over the keys.

Blocks left of the diagonal need no mask, blocks on it do, blocks right of it are never read. Queries of the end of the
sequence come first: they take longest, and a long program that starts last would run alone.

`plain_kernel` reads by pointers, any type and size of head. Each product is waited for in place, whatever order the
source has (weights carried to the next step, for their product to run under its softmax, were waited for just the
same), so the softmax of one program has to run under the products of another on the same multiprocessor: 121 registers
a thread leave room for two of 128 queries. 4 x 16 heads of 4096 x 64, causal, on an H200: 331-341 us, which is what
torch's best backend takes beside it (334-340 with blocks in groups of 8 or 16 heads, so it does without); 390 us with
two stages in place of three, 340 us with four programs of 64 queries, 388 us with 32 keys a block. The same loop with
loads by TMA took 355 to 360 us (340 at best, with 64 x 128 blocks), and with as many programs as run at once, that walk
over all blocks, 361 to 384 us.

`specialised_kernel` is for heads of 128, whose accumulators leave room for one program only. Loads have a warp group of
their own and each of two others half of the queries, so that one's softmax runs under the other's products: 878 us for
32 heads of 8192 x 128, where cuDNN takes 898 and `plain_kernel` 1105 at best; 937 us with the mask looked at in every
block. Heads of 64, whose softmax is half of the work, take 344 us with it. Triton 3.6 and 3.7 specialise no kernel with
a branch or with a second product loop, and put barriers that nobody uses (one a stage) where the first tile of the
largest operand will lie: with three stages or more their bits turned up in it as NaN, with two they did not. So its
blocks are always 128 x 128 with two stages.
"""

BLOCK_M = 128
BLOCK_N = 64
NUM_WARPS = 8
NUM_STAGES = 3
SPECIALISED = 1  # whether heads of 128 have warps of their own for loads; then the numbers above are not theirs


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


@triton.jit
def step(acc, top, total, s, v, own, start, scale, D: tl.constexpr, BN: tl.constexpr):
    """Takes the scores of a block of keys into the result, the greatest score so far and the sum of weights."""
    # the scale (with log2 e in it) is applied after the subtraction, in one multiply-add
    higher = tl.maximum(top, tl.max(s, 1) * scale)
    p = tl.exp2(s * scale - higher[:, None])
    shrink = tl.exp2(top - higher)
    values = v.load([own, start, 0]).reshape(BN, D)
    acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None])
    return acc, higher, total * shrink + tl.sum(p, 1)


@triton.jit
def put(y_ptr, acc, total, head, i, queries, D: tl.constexpr):
    at = head.to(tl.int64) * queries * D + i[:, None].to(tl.int64) * D + tl.arange(0, D)[None, :]
    y = acc * (1.0 / total)[:, None]
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=i[:, None] < queries)


@triton.jit
def shown(item, items):
    """The block for a turn: odd rounds of the grid go backwards, unless a round is not full."""
    programs = tl.num_programs(0)
    turn = item // programs
    mirrored = turn * programs + (programs - 1 - item % programs)
    return tl.where((turn % 2 == 1) & ((turn + 1) * programs <= items), mirrored, item)


@triton.jit
def specialised_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, count, heads, shared, queries, keys, scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    # made here, because the compiler halves the queries' block between two warp groups: a host's it could not change
    q_rows = tl.make_tensor_descriptor(q_ptr, [count * queries, D], [D, 1], [BM, D])
    k = tl.make_tensor_descriptor(k_ptr, [count // shared, keys, D], [keys.to(tl.int64) * D, D, 1], [1, BN, D])
    v = tl.make_tensor_descriptor(v_ptr, [count // shared, keys, D], [keys.to(tl.int64) * D, D, 1], [1, BN, D])
    high = tl.cdiv(queries, BM)
    # one program a multiprocessor: its warp groups begin the next block while the last one is stored
    for turn in tl.range(tl.program_id(0), count * high, tl.num_programs(0)):
        item = shown(turn, count * high)
        head = item % count
        row = (high - 1 - item // count) * BM
        own = head // heads * (heads // shared) + head % heads // shared  # the head of keys that this head sees
        i = row + tl.arange(0, BM)
        q = q_rows.load([head * queries + row, 0])
        acc = tl.zeros((BM, D), tl.float32)
        top = tl.full((BM,), -float("inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        # the only block that needs a mask comes first and finds it in what its product is added to
        masked = (row if CAUSAL else keys - 1) // BN * BN
        j = masked + tl.arange(0, BN)
        seen = j[None, :] <= i[:, None] if CAUSAL else (j[None, :] < keys) & (i[:, None] >= 0)
        s = tl.where(seen, 0.0, -float("inf"))
        for turned in tl.range(0, masked + BN, BN, warp_specialize=True):
            start = tl.where(turned == 0, masked, turned - BN)
            s = tl.dot(q, k.load([own, start, 0]).reshape(BN, D).T, s)
            acc, top, total = step(acc, top, total, s, v, own, start, scale, D, BN)
            s = tl.zeros((BM, BN), tl.float32)
        put(y_ptr, acc, total, head, i, queries, D)


def allocate(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


def specialised(q, k, v, y, causal, scale):
    batch, heads, queries, depth = q.shape
    count = batch * heads
    programs = torch.cuda.get_device_properties(q.device).multi_processor_count
    triton.set_allocator(allocate)  # descriptors lie in memory that the launch asks for
    specialised_kernel[(min(programs, count * triton.cdiv(queries, 128)),)](
        q, k, v, y, count, heads, heads // k.shape[1], queries, k.shape[2], scale,
        CAUSAL=causal, D=depth, BM=128, BN=128, num_warps=4, num_stages=2,
    )  # fmt: skip


def tile(depth, size):
    """Queries, keys and stages of a block for heads of `depth` elements of `size` bytes, which shared memory has
    room for."""
    bm, bn = (BLOCK_M, BLOCK_N) if size == 2 and depth <= 256 else (64, 32)
    # float32 queries lie there twice, once for each of the parts that they are multiplied in
    room = (224 << 10) - bm * depth * size * (size // 2)
    while bn > 16 and room < 2 * (2 * bn * depth * size):
        bn //= 2
    return bm, bn, max(1, min(NUM_STAGES, room // (2 * bn * depth * size)))


def plain(q, k, v, y, causal, scale):
    batch, heads, queries, depth = q.shape
    keys = k.shape[2]
    padded = max(16, triton.next_power_of_2(depth))
    bm, bn, stages = tile(padded, q.element_size())
    bm = min(bm, max(16, triton.next_power_of_2(queries)))
    bn = min(bn, max(16, triton.next_power_of_2(keys)))
    plain_kernel[(batch * heads, triton.cdiv(queries, bm))](
        q, k, v, y, heads, heads // k.shape[1], queries, keys, scale,
        CAUSAL=causal, D=depth, DEPTH=padded, BM=bm, BN=bn, num_warps=NUM_WARPS, num_stages=stages,
    )  # fmt: skip


def attention(q, k, v, causal):
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    y = torch.empty_like(q)
    scale = q.shape[3] ** -0.5 * 1.4426950408889634
    # TMA reads from multiples of 16 bytes
    fits = q.element_size() == 2 and q.shape[3] == 128 and all(t.data_ptr() % 16 == 0 for t in (q, k, v))
    (specialised if SPECIALISED and fits else plain)(q, k, v, y, causal, scale)
    return y
