# says: flash attention backward: scores made again block by block, a pass over keys for queries and one over queries for keys
# gradients: q, k, v = attention_backward(gradient, q, k, v, True) of F.scaled_dot_product_attention(q, k, v, is_causal=True) where q: B H S D<257, k: B H S D, v: B H S D
# gradients: q, k, v = attention_backward(gradient, q, k, v, True) of F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) where q: B H S D<257, k: B G S D, v: B G S D
# gradients: q, k, v = attention_backward(gradient, q, k, v, False) of F.scaled_dot_product_attention(q, k, v) where q: B H S D<257, k: B H T D, v: B H T D
# step: q, k, v = attention_gradients(saved, gradient, True) after attention_saving(q, k, v, True) of F.scaled_dot_product_attention(q, k, v, is_causal=True) where q: B H S D<257, k: B H S D, v: B H S D
# step: q, k, v = attention_gradients(saved, gradient, True) after attention_saving(q, k, v, True) of F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) where q: B H S D<257, k: B G S D, v: B G S D
# step: q, k, v = attention_gradients(saved, gradient, False) after attention_saving(q, k, v, False) of F.scaled_dot_product_attention(q, k, v) where q: B H S D<257, k: B H T D, v: B H T D
# search: BLOCK_M = 64 128
# search: STEP_N = 32 64 128
# search: BLOCK_N = 64 128
# search: STEP_M = 32 64 128
# search: QUERY_WARPS = 4 8
# search: KEY_WARPS = 4 8
# search: NUM_STAGES = 1 2 3
# search: REST = 0 1
"""Backward of attention without its matrix of scores, which both kernels make again, block by block.

With p the softmax and dp = dy v^T, the gradient of a row's scores is p (dp - delta), delta being the row's sum of p dp.
`queries_kernel` keeps a block of queries and walks over the keys twice: first for each row's delta and its level, the
log2 of the sum of its exponentials; then, with both, for dq. `keys_kernel` keeps a block of keys and walks over the
queries that see it, those of all heads that share it, for dk and dv; its blocks are transposed, so that both go into the
next product from registers. No atomics: the result is the same each time.

In a training step the forward, `outputs_kernel`, leaves the levels and its output y, and delta is the sum of dy y. So the
first walk, 2 of 9 products, is not made there. y is stored rounded, which a delta suffers from where one key has nearly
all weight, and dp - delta should be 0: with bfloat16 the errors of small cases are 0.85 of what is allowed, and 0.4 where
what rounding took away is left, too.

Blocks above the diagonal are never read, those on it are masked. Blocks that take longest come first.
"""

BLOCK_M = 64  # queries that a program of `queries_kernel` keeps
STEP_N = 64  # keys of a step there
QUERY_WARPS = 4
BLOCK_N = 64  # keys that a program of `keys_kernel` keeps
STEP_M = 64  # queries of a step there, for heads of 64; half as many for heads of 128, whose accumulators need room
KEY_WARPS = 4
NUM_STAGES = 2
REST = 1  # whether a step saves what its output loses by rounding


@triton.jit
def rows_of(ptr, row, rows, D: tl.constexpr, DEPTH: tl.constexpr):
    """Rows of a head's matrix, of less than 2^31 elements; those beyond the last are 0."""
    d = tl.arange(0, DEPTH)
    at = row[:, None] * D + d[None, :]
    return tl.load(ptr + at, mask=(row[:, None] < rows) & (d[None, :] < D), other=0.0)


@triton.jit
def put(ptr, values, row, rows, D: tl.constexpr, DEPTH: tl.constexpr):
    d = tl.arange(0, DEPTH)
    at = row[:, None] * D + d[None, :]
    tl.store(ptr + at, values.to(ptr.dtype.element_ty), mask=(row[:, None] < rows) & (d[None, :] < D))


@triton.jit
def scores(q, k, i, j, keys, MASKED: tl.constexpr, CAUSAL: tl.constexpr):
    """Of queries i with keys j, without their scale; where a query does not see a key, minus infinity."""
    s = tl.dot(q, tl.trans(k), input_precision="tf32x3")
    if MASKED:
        seen = j[None, :] < keys
        if CAUSAL:
            seen = seen & (j[None, :] <= i[:, None])
        s = tl.where(seen, s, -float("inf"))
    return s


@triton.jit
def weights(s, top, total, scale):
    """Exponentials of scores, the factor for what was summed under the old greatest score, the new one, and the sum."""
    # the scale (with log2 e in it) is applied after the subtraction, in one multiply-add
    higher = tl.maximum(top, tl.max(s, 1) * scale)
    p = tl.exp2(s * scale - higher[:, None])
    shrink = tl.exp2(top - higher)
    return p, shrink, higher, total * shrink + tl.sum(p, 1)


@triton.jit
def levels(
    top, total, along, q, dy, k, v, i, first, end, keys, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Takes keys into each row's greatest score, sum of exponentials, and sum of these times dp."""
    for start in tl.range(first, end, BN):
        j = start + tl.arange(0, BN)
        s = scores(q, rows_of(k, j, keys, D, DEPTH), i, j, keys, MASKED, CAUSAL)
        dp = tl.dot(dy, tl.trans(rows_of(v, j, keys, D, DEPTH)), input_precision="tf32x3")
        p, shrink, top, total = weights(s, top, total, scale)
        along = along * shrink + tl.sum(p * dp, 1)
    return top, total, along


@triton.jit
def outputs(
    acc, top, total, q, k, v, i, first, end, keys, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    for start in tl.range(first, end, BN):
        j = start + tl.arange(0, BN)
        s = scores(q, rows_of(k, j, keys, D, DEPTH), i, j, keys, MASKED, CAUSAL)
        p, shrink, top, total = weights(s, top, total, scale)
        values = rows_of(v, j, keys, D, DEPTH)
        acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None], input_precision="tf32x3")
    return acc, top, total


@triton.jit
def place(heads, shared, keys, CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """A program's head, of all batches; the head of keys that it sees; its queries; where blocks of keys that all of them
    see end, and all blocks that one sees."""
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    head = tl.program_id(0).to(tl.int64)
    own = head // heads * (heads // shared) + head % heads // shared
    bare = (tl.minimum(block * BM, keys) if CAUSAL else keys) // BN * BN
    end = tl.minimum((block + 1) * BM, keys) if CAUSAL else keys
    return head, own, block * BM + tl.arange(0, BM), bare, end


@triton.jit
def outputs_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, rest_ptr, level_ptr, heads, shared, queries, keys, scale,
    CAUSAL: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    head, own, i, bare, end = place(heads, shared, keys, CAUSAL, BM, BN)
    q = rows_of(q_ptr + head * queries * D, i, queries, D, DEPTH)
    k, v = k_ptr + own * keys * D, v_ptr + own * keys * D
    acc = tl.zeros((BM, DEPTH), tl.float32)
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc, top, total = outputs(acc, top, total, q, k, v, i, 0, bare, keys, scale, False, CAUSAL, D, DEPTH, BN)
    acc, top, total = outputs(acc, top, total, q, k, v, i, bare, end, keys, scale, True, CAUSAL, D, DEPTH, BN)
    y = acc / total[:, None]
    put(y_ptr + head * queries * D, y, i, queries, D, DEPTH)
    if rest_ptr is not None:
        rest = y - y.to(y_ptr.dtype.element_ty).to(tl.float32)
        put(rest_ptr + head * queries * D, rest, i, queries, D, DEPTH)
    tl.store(level_ptr + head * queries + i, top + tl.log2(total), mask=i < queries)


@triton.jit
def of_queries(
    dq, level, delta, q, dy, k, v, i, first, end, keys, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    for start in tl.range(first, end, BN):
        j = start + tl.arange(0, BN)
        own = rows_of(k, j, keys, D, DEPTH)
        s = scores(q, own, i, j, keys, MASKED, CAUSAL)
        dp = tl.dot(dy, tl.trans(rows_of(v, j, keys, D, DEPTH)), input_precision="tf32x3")
        ds = tl.exp2(s * scale - level[:, None]) * (dp - delta[:, None])
        dq = tl.dot(ds.to(own.dtype), own, dq, input_precision="tf32x3")
    return dq


@triton.jit
def queries_kernel(
    dy_ptr, q_ptr, k_ptr, v_ptr, y_ptr, rest_ptr, dq_ptr, level_ptr, delta_ptr,
    heads, shared, queries, keys, scale, root,
    SAVED: tl.constexpr, CAUSAL: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    head, own, i, bare, end = place(heads, shared, keys, CAUSAL, BM, BN)
    q = rows_of(q_ptr + head * queries * D, i, queries, D, DEPTH)
    dy = rows_of(dy_ptr + head * queries * D, i, queries, D, DEPTH)
    k, v = k_ptr + own * keys * D, v_ptr + own * keys * D
    if SAVED:
        level = tl.load(level_ptr + head * queries + i, mask=i < queries, other=0.0)
        y = rows_of(y_ptr + head * queries * D, i, queries, D, DEPTH).to(tl.float32)
        if rest_ptr is not None:
            y += rows_of(rest_ptr + head * queries * D, i, queries, D, DEPTH).to(tl.float32)
        delta = tl.sum(dy.to(tl.float32) * y, 1)
    else:
        top = tl.full((BM,), -float("inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        along = tl.zeros((BM,), tl.float32)
        top, total, along = levels(
            top, total, along, q, dy, k, v, i, 0, bare, keys, scale, False, CAUSAL, D, DEPTH, BN
        )  # fmt: skip
        top, total, along = levels(
            top, total, along, q, dy, k, v, i, bare, end, keys, scale, True, CAUSAL, D, DEPTH, BN
        )  # fmt: skip
        level, delta = top + tl.log2(total), along / total
        tl.store(level_ptr + head * queries + i, level, mask=i < queries)
    tl.store(delta_ptr + head * queries + i, delta, mask=i < queries)
    dq = tl.zeros((BM, DEPTH), tl.float32)
    dq = of_queries(dq, level, delta, q, dy, k, v, i, 0, bare, keys, scale, False, CAUSAL, D, DEPTH, BN)
    dq = of_queries(dq, level, delta, q, dy, k, v, i, bare, end, keys, scale, True, CAUSAL, D, DEPTH, BN)
    put(dq_ptr + head * queries * D, dq * root, i, queries, D, DEPTH)


@triton.jit
def of_keys(
    dk, dv, k, v, dy_ptr, q_ptr, level_ptr, delta_ptr, j, first, end, queries, scale,
    MASKED: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    for start in tl.range(first, end, BM):
        i = start + tl.arange(0, BM)
        q = rows_of(q_ptr, i, queries, D, DEPTH)
        dy = rows_of(dy_ptr, i, queries, D, DEPTH)
        level = tl.load(level_ptr + i, mask=i < queries, other=0.0)
        delta = tl.load(delta_ptr + i, mask=i < queries, other=0.0)
        s = tl.dot(k, tl.trans(q), input_precision="tf32x3")
        if MASKED:
            s = tl.where(j[:, None] <= i[None, :], s, -float("inf"))
        p = tl.exp2(s * scale - level[None, :])
        dv = tl.dot(p.to(dy.dtype), dy, dv, input_precision="tf32x3")
        dp = tl.dot(v, tl.trans(dy), input_precision="tf32x3")
        ds = p * (dp - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="tf32x3")
    return dk, dv


@triton.jit
def keys_kernel(
    dy_ptr, q_ptr, k_ptr, v_ptr, dk_ptr, dv_ptr, level_ptr, delta_ptr, shared, queries, keys, scale, root,
    CAUSAL: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    own = tl.program_id(0).to(tl.int64)  # a head of keys, of all batches
    block = tl.program_id(1)
    j = block * BN + tl.arange(0, BN)
    k = rows_of(k_ptr + own * keys * D, j, keys, D, DEPTH)
    v = rows_of(v_ptr + own * keys * D, j, keys, D, DEPTH)
    dk = tl.zeros((BN, DEPTH), tl.float32)
    dv = tl.zeros((BN, DEPTH), tl.float32)
    first = block * BN // BM * BM if CAUSAL else 0
    bare = tl.minimum(tl.cdiv((block + 1) * BN, BM) * BM, queries) if CAUSAL else 0
    for head in range(own * shared, (own + 1) * shared):
        at = head * queries
        dy, q, level, delta = dy_ptr + at * D, q_ptr + at * D, level_ptr + at, delta_ptr + at
        if CAUSAL:
            dk, dv = of_keys(dk, dv, k, v, dy, q, level, delta, j, first, bare, queries, scale, True, D, DEPTH, BM)
        dk, dv = of_keys(dk, dv, k, v, dy, q, level, delta, j, bare, queries, queries, scale, False, D, DEPTH, BM)
    put(dk_ptr + own * keys * D, dk * root, j, keys, D, DEPTH)
    put(dv_ptr + own * keys * D, dv, j, keys, D, DEPTH)


def tile(depth, size, kept, step, rows, steps):
    """Rows that a program keeps, rows of a step, and stages, for heads of `depth` elements of `size` bytes, which
    shared memory has room for."""
    if size > 2:
        kept, step = 32, 16
    elif depth > 128:
        kept, step = 64, 32
    kept = min(kept, max(16, triton.next_power_of_2(rows)))
    step = min(step, max(16, triton.next_power_of_2(steps)))
    # two matrices of each; float32 lies there twice, once for each of the parts that it is multiplied in
    room = (200 << 10) - 2 * kept * depth * size * (size // 2)
    taken = 2 * step * depth * size * (size // 2)
    return kept, step, max(1, min(NUM_STAGES, room // taken))


def sizes(q, k):
    """Heads, those that share one of keys, queries, keys, and the factor of scores with and without log2 e in it."""
    root = q.shape[3] ** -0.5
    return q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], root * 1.4426950408889634, root


def attention_saving(q, k, v, causal):
    """The output; and what its gradients need, with the levels of its rows and what rounding took away."""
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    heads, shared, queries, keys, scale, _ = sizes(q, k)
    y, level = torch.empty_like(q), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    rest = torch.empty_like(q) if REST and q.element_size() == 2 else None
    padded = max(16, triton.next_power_of_2(q.shape[3]))
    bm, bn, stages = tile(padded, q.element_size(), BLOCK_M, STEP_N, queries, keys)
    outputs_kernel[(q.shape[0] * heads, triton.cdiv(queries, bm))](
        q, k, v, y, rest, level, heads, shared, queries, keys, scale,
        CAUSAL=causal, D=q.shape[3], DEPTH=padded, BM=bm, BN=bn, num_warps=max(QUERY_WARPS, padded // 32),
        num_stages=stages,
    )  # fmt: skip
    return (y,), (q, k, v, y, level) if rest is None else (q, k, v, y, level, rest)


def attention_gradients(saved, gradient, causal):
    q, k, v, y, level, *rest = saved
    return launch(gradient.contiguous(), q, k, v, y, rest[0] if rest else None, level, causal, True)


def attention_backward(gradient, q, k, v, causal):
    gradient, q, k, v = gradient.contiguous(), q.contiguous(), k.contiguous(), v.contiguous()
    level = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    return launch(gradient, q, k, v, None, None, level, causal, False)


def launch(gradient, q, k, v, y, rest, level, causal, saved):
    dq, dk, dv, delta = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.empty_like(level)
    heads, shared, queries, keys, scale, root = sizes(q, k)
    depth, padded = q.shape[3], max(16, triton.next_power_of_2(q.shape[3]))
    bm, bn, stages = tile(padded, q.element_size(), BLOCK_M, STEP_N, queries, keys)
    queries_kernel[(q.shape[0] * heads, triton.cdiv(queries, bm))](
        gradient, q, k, v, y, rest, dq, level, delta, heads, shared, queries, keys, scale, root,
        SAVED=saved, CAUSAL=causal, D=depth, DEPTH=padded, BM=bm, BN=bn,
        num_warps=max(QUERY_WARPS, padded // 32), num_stages=stages,
    )  # fmt: skip
    bn, bm, stages = tile(padded, q.element_size(), BLOCK_N, STEP_M * 64 // max(64, padded), keys, queries)
    keys_kernel[(q.shape[0] * heads // shared, triton.cdiv(keys, bn))](
        gradient, q, k, v, dk, dv, level, delta, shared, queries, keys, scale, root,
        CAUSAL=causal, D=depth, DEPTH=padded, BM=bm, BN=bn, num_warps=max(KEY_WARPS, padded // 32), num_stages=stages,
    )  # fmt: skip
    return dq, dk, dv
