"""Realistic Triton kernels whose TTIR the interpreter tests run against torch references."""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def softmax_row(x, y, n, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * n + o, e / tl.sum(e, 0), mask=o < n)


@triton.jit
def softmax_online(x, y, n, B: tl.constexpr):
    row = tl.program_id(0)
    m = -float("inf")
    s = 0.0
    for start in range(0, n, B):
        o = start + tl.arange(0, B)
        v = tl.load(x + row * n + o, mask=o < n, other=-float("inf"))
        new = tl.maximum(m, tl.max(v, 0))
        s = s * tl.exp(m - new) + tl.sum(tl.exp(v - new), 0)
        m = new
    for start in range(0, n, B):
        o = start + tl.arange(0, B)
        v = tl.load(x + row * n + o, mask=o < n, other=-float("inf"))
        tl.store(y + row * n + o, tl.exp(v - m) / s, mask=o < n)


@triton.jit
def layernorm(x, w, b, y, n, eps, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    m = o < n
    v = tl.load(x + row * n + o, mask=m, other=0.0).to(tl.float32)
    mean = tl.sum(v, 0) / n
    d = tl.where(m, v - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(d * d, 0) / n + eps)
    out = d * rstd * tl.load(w + o, mask=m, other=0.0) + tl.load(b + o, mask=m, other=0.0)
    tl.store(y + row * n + o, out.to(y.dtype.element_ty), mask=m)


@triton.jit
def matmul(
    a,
    b,
    c,
    M,
    N,
    K,
    sam,
    sak,
    sbk,
    sbn,
    scm,
    scn,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    G: tl.constexpr,
    PREC: tl.constexpr,
):
    pid = tl.program_id(0)
    npm = tl.cdiv(M, BM)
    npn = tl.cdiv(N, BN)
    width = G * npn
    group = pid // width
    first = group * G
    gsz = min(npm - first, G)
    pm = first + (pid % width) % gsz
    pn = (pid % width) // gsz
    om = pm * BM + tl.arange(0, BM)
    on = pn * BN + tl.arange(0, BN)
    ok = tl.arange(0, BK)
    pa = a + om[:, None] * sam + ok[None, :] * sak
    pb = b + ok[:, None] * sbk + on[None, :] * sbn
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        ma = (om[:, None] < M) & (ok[None, :] < K - k * BK)
        mb = (ok[:, None] < K - k * BK) & (on[None, :] < N)
        acc = tl.dot(tl.load(pa, mask=ma, other=0.0), tl.load(pb, mask=mb, other=0.0), acc, input_precision=PREC)
        pa += BK * sak
        pb += BK * sbk
    tl.store(
        c + om[:, None] * scm + on[None, :] * scn,
        acc.to(c.dtype.element_ty),
        mask=(om[:, None] < M) & (on[None, :] < N),
    )


@triton.jit
def matmul_split_k(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, S: tl.constexpr):
    om = tl.program_id(0) * BM + tl.arange(0, BM)
    on = tl.program_id(1) * BN + tl.arange(0, BN)
    ok = tl.program_id(2) * BK + tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK * S):
        x = tl.load(a + om[:, None] * K + (k + ok)[None, :], mask=(k + ok)[None, :] < K, other=0.0)
        y = tl.load(b + (k + ok)[:, None] * N + on[None, :], mask=(k + ok)[:, None] < K, other=0.0)
        acc += tl.dot(x, y, input_precision="ieee")
    tl.atomic_add(c + om[:, None] * N + on[None, :], acc)


@triton.jit
def matmul_persistent(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, P: tl.constexpr):
    tiles_n = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * tiles_n
    for tile in tl.range(tl.program_id(0), tiles, P):
        om = (tile // tiles_n) * BM + tl.arange(0, BM)
        on = (tile % tiles_n) * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            ok = k + tl.arange(0, BK)
            acc = tl.dot(tl.load(a + om[:, None] * K + ok[None, :]), tl.load(b + ok[:, None] * N + on[None, :]), acc)
        tl.store(c + om[:, None] * N + on[None, :], acc)


@triton.jit
def attention(q, k, v, o, T, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    start = tl.program_id(0) * BM
    base = tl.program_id(1).to(tl.int64) * T * D
    om = start + tl.arange(0, BM)
    od = tl.arange(0, D)
    qq = tl.load(q + base + om[:, None] * D + od[None, :], mask=om[:, None] < T, other=0.0)
    m = tl.full((BM,), -float("inf"), tl.float32)
    l = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    end = T
    if CAUSAL:
        end = tl.minimum(start + BM, T)
    for n in range(0, end, BN):
        on = n + tl.arange(0, BN)
        kk = tl.load(k + base + on[None, :] * D + od[:, None], mask=on[None, :] < T, other=0.0)
        vv = tl.load(v + base + on[:, None] * D + od[None, :], mask=on[:, None] < T, other=0.0)
        s = tl.dot(qq, kk) * (scale * 1.4426950408889634)
        ok = on[None, :] < T
        if CAUSAL:
            ok = ok & (om[:, None] >= on[None, :])
        s = tl.where(ok, s, -float("inf"))
        new = tl.maximum(m, tl.max(s, 1))
        p = tl.math.exp2(s - new[:, None])
        alpha = tl.math.exp2(m - new)
        l = l * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        acc = tl.dot(p.to(vv.dtype), vv, acc)
        m = new
    tl.store(o + base + om[:, None] * D + od[None, :], (acc / l[:, None]).to(o.dtype.element_ty), mask=om[:, None] < T)


@triton.jit
def cumsum(x, y, n, B: tl.constexpr, REVERSE: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=0.0)
    tl.store(y + row * n + o, tl.cumsum(v, 0, reverse=REVERSE), mask=o < n)


@triton.jit
def argmax(x, yv, yi, n, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=-float("inf"))
    best, where = tl.max(v, 0, return_indices=True)
    tl.store(yv + row, best)
    tl.store(yi + row, where)


@triton.jit
def argmin_last(x, yi, n, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=float("inf"))
    tl.store(yi + row, tl.argmin(v, 0, tie_break_left=False))


@triton.jit
def total(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(y, tl.sum(tl.load(x + o, mask=o < n, other=0.0), 0))


@triton.jit
def atomic_kinds(x, bins, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n, other=0)
    tl.atomic_add(bins + v % 4, 1, mask=o < n)
    tl.atomic_max(bins + 4 + v % 4, v, mask=o < n)
    tl.atomic_min(bins + 8 + v % 4, v, mask=o < n)
    tl.atomic_or(bins + 12 + v % 4, v, mask=o < n)
    tl.atomic_and(bins + 16 + v % 4, v, mask=o < n)
    tl.atomic_xor(bins + 20 + v % 4, v, mask=o < n)


@triton.jit
def ticket(counter, y):
    t = tl.atomic_add(counter, 1)
    tl.store(y + t, tl.program_id(0))
    tl.atomic_xchg(counter + 1, 7)


@triton.jit
def float_atomic_max(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n, other=-float("inf"))
    tl.atomic_max(y, tl.max(v, 0))


@triton.jit
def compare_and_swap(lock, y):
    old = tl.atomic_cas(lock, 0, tl.program_id(0) + 1)
    tl.store(y + tl.program_id(0), old)


@triton.jit
def spin_forever(lock):
    while tl.atomic_cas(lock, 0, 1) == 0:
        tl.atomic_xchg(lock, 0)


@triton.jit
def sum_behind_a_barrier(x, parts, y, arrived, B: tl.constexpr, PARTS: tl.constexpr):
    """Every program sums a block, waits for all others, and then writes the sum of all blocks."""
    p = tl.program_id(0)
    tl.store(parts + p, tl.sum(tl.load(x + p * B + tl.arange(0, B)), 0))
    tl.atomic_add(arrived, 1, sem="release")
    while tl.atomic_add(arrived, 0, sem="acquire") < tl.num_programs(0):
        pass
    i = tl.arange(0, PARTS)
    tl.store(y + p, tl.sum(tl.load(parts + i, mask=i < tl.num_programs(0), other=0.0, volatile=True), 0))


@triton.jit
def running_sum_behind_the_program_before(x, y, flags, B: tl.constexpr):
    p = tl.program_id(0)
    v = tl.cumsum(tl.load(x + p * B + tl.arange(0, B)), 0)
    before = 0.0
    if p > 0:
        while tl.load(flags + p - 1, volatile=True) == 0:
            pass
        before = tl.load(y + p * B - 1)
    tl.store(y + p * B + tl.arange(0, B), v + before)
    tl.atomic_xchg(flags + p, 1)


@triton.jit
def tiles_from_a_queue(x, y, next_tile, TILES: tl.constexpr, B: tl.constexpr):
    tile = tl.atomic_add(next_tile, 1)
    while tile < TILES:
        o = tile * B + tl.arange(0, B)
        tl.store(y + o, tl.load(x + o) * 2)
        tile = tl.atomic_add(next_tile, 1)


@triton.jit
def block_pointer_copy(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    px = tl.make_block_ptr(x, (M, N), (N, 1), (tl.program_id(0) * BM, 0), (BM, BN), (1, 0))
    py = tl.make_block_ptr(y, (M, N), (N, 1), (tl.program_id(0) * BM, 0), (BM, BN), (1, 0))
    for _ in range(0, N, BN):
        tl.store(py, tl.load(px, boundary_check=(0, 1), padding_option="zero") * 2, boundary_check=(0, 1))
        px = tl.advance(px, (0, BN))
        py = tl.advance(py, (0, BN))


@triton.jit
def descriptor_device(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    dx = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BM, BN])
    dy = tl.make_tensor_descriptor(y, [M, N], [N, 1], [BM, BN])
    i = tl.program_id(0) * BM
    j = tl.program_id(1) * BN
    dy.store([i, j], dx.load([i, j]) + 1)


@triton.jit
def descriptor_host(dx, dy, scale, BM: tl.constexpr, BN: tl.constexpr):
    i = tl.program_id(0) * BM
    j = tl.program_id(1) * BN
    dy.store([i, j], dx.load([i, j]) * scale)


@triton.jit
def descriptor_reduce_gather(x, idx, y, z, M, N, BN: tl.constexpr, R: tl.constexpr):
    dy = tl.make_tensor_descriptor(y, [M, N], [N, 1], [R, BN])
    dg = tl.make_tensor_descriptor(x, [M, N], [N, 1], [1, BN])
    ds = tl.make_tensor_descriptor(z, [M, N], [N, 1], [1, BN])
    rows = tl.load(idx + tl.arange(0, R))
    v = dg.gather(rows, 0)
    dy.atomic_add([0, 0], v)
    ds.scatter(v, rows, 0)


@triton.jit
def descriptor_extremes(x, low, high, M, N, BM: tl.constexpr, BN: tl.constexpr):
    v = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BM, BN]).load([0, 0])
    tl.make_tensor_descriptor(low, [M, N], [N, 1], [BM, BN]).atomic_min([0, 0], v)
    tl.make_tensor_descriptor(high, [M, N], [N, 1], [BM, BN]).atomic_max([0, 0], v)


@triton.jit
def sort_rows(x, y, B: tl.constexpr, DESC: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, tl.sort(tl.load(x + o), descending=DESC))


@triton.jit
def cross_entropy(x, labels, loss, n, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    m = -float("inf")
    s = 0.0
    for start in range(0, n, B):
        o = start + tl.arange(0, B)
        v = tl.load(x + row * n + o, mask=o < n, other=-float("inf")).to(tl.float32)
        new = tl.maximum(m, tl.max(v, 0))
        s = s * tl.exp(m - new) + tl.sum(tl.exp(v - new), 0)
        m = new
    out = 0.0
    if label != -100:
        out = m + tl.log(s) - tl.load(x + row * n + label).to(tl.float32)
    tl.store(loss + row, out)


@triton.jit
def rope(x, cos, sin, n, H: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, H)
    a = tl.load(x + row * 2 * H + o)
    b = tl.load(x + row * 2 * H + H + o)
    c = tl.load(cos + row * H + o)
    s = tl.load(sin + row * H + o)
    tl.store(x + row * 2 * H + o, a * c - b * s)
    tl.store(x + row * 2 * H + H + o, b * c + a * s)


@triton.jit
def quantise_int8(x, q, s, n, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=0.0)
    scale = tl.max(tl.abs(v), 0) / 127.0
    r = tl.extra.cuda.libdevice.rint(v / scale)
    tl.store(q + row * n + o, tl.clamp(r, -127.0, 127.0).to(tl.int8), mask=o < n)
    tl.store(s + row, scale)


@triton.jit
def dropout(x, y, n, p, seed, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    keep = tl.rand(seed, o) > p
    tl.store(y + o, tl.where(keep, tl.load(x + o, mask=o < n) / (1 - p), 0.0), mask=o < n)


@triton.jit
def philox_words(y, seed, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, tl.randint(seed, o))


@triton.jit
def interleave(x, y, z, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o)
    b = tl.load(x + B + o)
    tl.store(y + tl.arange(0, 2 * B), tl.interleave(a, b))
    lo, hi = tl.split(tl.trans(tl.reshape(tl.interleave(a, b), (2, B)), 1, 0))
    tl.store(z + o, lo - hi)


@triton.jit
def cat_pair(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + tl.arange(0, 2 * B), tl.cat(tl.load(x + o), tl.load(x + B + o), can_reorder=True))


@triton.jit
def collatz(x, y):
    pid = tl.program_id(0)
    v = tl.load(x + pid)
    steps = 0
    while v != 1:
        if v % 2 == 0:
            v = v // 2
        else:
            v = 3 * v + 1
        steps += 1
    tl.store(y + pid, steps)


@triton.jit(noinline=True)
def _poly(v, k):
    if k > 2:
        return v * v
    return v + 1.0


@triton.jit
def noinline_call(x, y, B: tl.constexpr):
    pid = tl.program_id(0)
    o = pid * B + tl.arange(0, B)
    tl.store(y + o, tl.load(x + o) * _poly(tl.load(x + pid), pid))


@triton.jit
def early_return(x, y, n, B: tl.constexpr):
    pid = tl.program_id(0)
    if pid >= n:
        return
    o = pid * B + tl.arange(0, B)
    tl.store(y + o, tl.load(x + o))


@triton.jit
def triangular(x, y, n):
    pid = tl.program_id(0)
    s = 0.0
    for i in range(0, pid + 1):
        if tl.load(x + i) > 0:
            s += tl.load(x + i) * i
    tl.store(y + pid, s)


@triton.jit
def running_total(x, y, n, B: tl.constexpr, KEPT: tl.constexpr):
    o = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in range(n):
        total += tl.load(x + i * B + o)
        tl.store(y + i * KEPT * B + o, total)


@triton.jit
def countdown(y, n):
    s = 0
    for i in range(n, 0, -2):
        s = s * 10 + i
    tl.store(y, s)


@triton.jit
def int_math(x, y, out, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o)
    b = tl.load(y + o)
    tl.store(out + o, a // b)
    tl.store(out + B + o, a % b)
    tl.store(out + 2 * B + o, a >> 3)
    tl.store(out + 3 * B + o, a * 1103515245 + 12345)
    tl.store(out + 4 * B + o, tl.umulhi(a.to(tl.uint32), b.to(tl.uint32)).to(tl.int32))
    tl.store(out + 5 * B + o, (a.to(tl.uint32) // b.to(tl.uint32)).to(tl.int32, bitcast=True))
    tl.store(out + 6 * B + o, (a.to(tl.uint32) > b.to(tl.uint32)).to(tl.int32))
    tl.store(out + 7 * B + o, a.to(tl.int8).to(tl.int32))


@triton.jit
def float_math(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o)
    tl.store(y + o, tl.exp(a))
    tl.store(y + B + o, tl.log(tl.abs(a)) + tl.log2(tl.abs(a)))
    tl.store(y + 2 * B + o, tl.sin(a) * tl.cos(a))
    tl.store(y + 3 * B + o, tl.erf(a) + tl.floor(a) - tl.ceil(a))
    tl.store(y + 4 * B + o, tl.sqrt_rn(tl.abs(a)) + tl.rsqrt(tl.abs(a)))
    tl.store(y + 5 * B + o, tl.div_rn(a, 3.0) + tl.fma(a, a, a))
    tl.store(y + 6 * B + o, tl.sigmoid(a))
    tl.store(y + 7 * B + o, tl.minimum(a, 0.5, propagate_nan=tl.PropagateNan.ALL))
    tl.store(y + 8 * B + o, tl.maximum(a, 0.5))


@triton.jit
def libdevice_math(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o)
    tl.store(y + o, tl.extra.cuda.libdevice.tanh(a))
    tl.store(y + B + o, tl.extra.cuda.libdevice.log1p(tl.abs(a)))
    tl.store(y + 2 * B + o, tl.extra.cuda.libdevice.expm1(a))
    tl.store(y + 3 * B + o, tl.extra.cuda.libdevice.pow(tl.abs(a), 1.5))
    tl.store(y + 4 * B + o, tl.extra.cuda.libdevice.isnan(a).to(tl.float32))


@triton.jit
def cast(x, y, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, tl.load(x + o, mask=o < n).to(y.dtype.element_ty), mask=o < n)


@triton.jit
def copy_unmasked(x, y, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, tl.load(x + o))


@triton.jit
def sum_without_other(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y, tl.sum(tl.load(x + o, mask=o < n), 0))


@triton.jit
def batched_dot(a, b, c, L: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, L)[:, None, None] * B * B + tl.arange(0, B)[None, :, None] * B + tl.arange(0, B)[None, None, :]
    tl.store(c + i, tl.dot(tl.load(a + i), tl.load(b + i), input_precision="ieee"))


@triton.jit
def dot_int8(a, b, c, B: tl.constexpr):
    i = tl.arange(0, B)[:, None] * B + tl.arange(0, B)[None, :]
    tl.store(c + i, tl.dot(tl.load(a + i), tl.load(b + i), out_dtype=tl.int32))


@triton.jit
def dot_scaled(a, by, b, by_right, c, KIND: tl.constexpr, OTHER: tl.constexpr, KA: tl.constexpr, KB: tl.constexpr):
    i, blocks = tl.arange(0, 32), tl.arange(0, 2)
    left = tl.load(a + i[:, None] * KA + tl.arange(0, KA)[None, :])
    right = tl.load(b + i[None, :] * KB + tl.arange(0, KB)[:, None])
    s = tl.load(by_right + i[:, None] * 2 + blocks[None, :])
    if KIND == "bf16" or KIND == "fp16":
        d = tl.dot_scaled(left, None, KIND, right, s, OTHER)
    else:
        d = tl.dot_scaled(left, tl.load(by + i[:, None] * 2 + blocks[None, :]), KIND, right, s, OTHER)
    tl.store(c + i[:, None] * 32 + i[None, :], d)


@triton.jit
def _welford(m1, s1, w1, m2, s2, w2):
    d = m2 - m1
    w = w1 + w2
    r = tl.where(w == 0.0, 0.0, w2 / w)
    return m1 + d * r, s1 + s2 + d * d * w1 * r, w


@triton.jit
def welford(x, mean, var, n, B: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, B)
    v = tl.load(x + row * n + o, mask=o < n, other=0.0)
    w = tl.where(o < n, 1.0, 0.0)
    m, s, c = tl.reduce((v, tl.zeros_like(v), w), 0, _welford)
    tl.store(mean + row, m)
    tl.store(var + row, s / c)


@triton.jit
def _recurrence(a1, b1, a2, b2):
    return a1 * a2, a2 * b1 + b2


@triton.jit
def linear_recurrence(a, b, y, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    _, h = tl.associative_scan((tl.load(a + o), tl.load(b + o)), 0, _recurrence)
    tl.store(y + o, h)


@triton.jit
def gather_histogram(x, idx, y, h, B: tl.constexpr, BINS: tl.constexpr):
    o = tl.arange(0, B)
    i = tl.load(idx + o)
    tl.store(y + o, tl.gather(tl.load(x + o), i, 0))
    tl.store(h + tl.arange(0, BINS), tl.histogram(i, BINS))


@triton.jit
def transpose(x, y, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    tl.store(y + n[:, None] * M + m[None, :], tl.trans(tl.load(x + m[:, None] * N + n[None, :])))


@triton.jit
def reduce_kinds(x, y, B: tl.constexpr):
    row = tl.program_id(0)
    v = tl.load(x + row * B + tl.arange(0, B))
    tl.store(y + row * 4, tl.xor_sum(v, 0))
    tl.store(y + row * 4 + 1, tl.max(v, 0))
    tl.store(y + row * 4 + 2, tl.min(v, 0))
    tl.store(y + row * 4 + 3, tl.sum(v, 0))


@triton.jit
def inline_asm(x, y, TEXT: tl.constexpr, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.inline_asm_elementwise(TEXT, "=r,r", [tl.load(x + o)], tl.int32, True, 1)
    tl.store(y + o, v)


@triton.jit
def inline_asm_of_two_results(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    text: tl.constexpr = """
    {
        .reg .f32 t;
        .reg .pred p;
        mul.rn.f32 t, $2, $3;
        setp.lt.f32 p, t, 0f00000000;
        @p neg.f32 t, t;
        add.rn.f32 $0, t, 0f3F800000;
        ex2.approx.ftz.f32 $1, $2;
    }
    """
    a, b = tl.inline_asm_elementwise(text, "=&f,=f,f,f", [tl.load(x + o), 3.0], (tl.float32, tl.float32), True, 1)
    tl.store(y + o, a)
    tl.store(y + B + o, b)


@triton.jit
def inline_asm_of_pairs(x, y, z, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o)
    h = tl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [v], tl.bfloat16, True, 2)
    tl.store(y + o, h)
    s = tl.inline_asm_elementwise("fma.rn.bf16x2 $0, $1, $1, $2;", "=r,r,0", [h, h], tl.bfloat16, True, 2)
    tl.store(z + o, s)


@triton.jit
def side_effects(x, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.device_print("value", v)
    tl.device_assert(tl.max(v, 0) < 100, "too big")
    tl.debug_barrier()
    tl.store(x + tl.arange(0, B), v + 1)


@triton.jit
def pointer_table(table, y, B: tl.constexpr):
    p = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    o = tl.arange(0, B)
    tl.store(y + tl.program_id(0) * B + o, tl.load(p + o) * 2)
