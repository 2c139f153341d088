# says: float32 products as three of float16
# takes: torch.mm, addmm, bmm, baddbmm, convolution, of float32
# search: BLOCK_M = 128 256
# search: BLOCK_N = 128 256
# search: NUM_STAGES = 3 4
# search: CONV_M = 128 256
# search: CONV_WARPS = 4 8
# search: CONV_STAGES = 3 4
# search: DIRECT_PLACES = 128 256
# search: DIRECT_WARPS = 2 4
"""Products and convolutions of float32, each as three products of float16. No candidate by itself: its functions take the
places of library calls in what TorchInductor writes.

Each row of an operand (each sample of a convolution's input) is scaled by a power of two, so that its largest value is
in [2^14, 2^15), and split: v = high + low, both float16. That keeps 23 of the 24 bits of a value, and of small ones
what is above 2^-39 of the row's largest. high x low, low x high and high x high are summed in float32; low x low, below
2^-22 of a product, is left out. Tensor cores truncate each sum: of 4,096 positive products the result was 2.3e-5 too
small on an H200. So sums move to a second accumulator after every CHUNK steps, and products with low come first: the
error is 1.1e-6 of the result then, cuBLAS's in float32 0.8e-6, and the product takes 655 us instead of 606. What an infinity
takes part in is NaN, where float32 may have an infinity.

4096 cubed takes 725 us with the pairs made from both operands (cuBLAS 2,705). A convolution is a sum of products over the
places of its window: x lies padded and channels last, so that a place is the same matrix some rows further on, which TMA
reads; neighbouring places of a row of the window are one long row. Against cuDNN in float32, KernelBench's sizes: 64 to
128 channels by 3 x 3 3.2 times as fast, by 5 x 7 8 times, transposed 4 times. To at most 32 channels what is read of x
bounds it: both halves of the filters are multiplied by the upper half of x in one product, and x is read twice, not three
times (KernelBench's level1/70 11,687 to 9,433 us, level1/78 2,940 to 2,516; to 64, where products bound it, level1/77
890 to 1,241). Tiles have 256 places where channels are few (3 by 11 x 11 to 96: 2,040 us, 2,821 by 128), 128 by 4 warps
for 64 outputs transposed with a stride (level2/26 1,931 to 1,392 us).

A convolution of few channels is too little for tensor cores, and padding it costs more than they save: it is summed in
float32, place by place of the window, DIRECT_CHANNELS x DIRECT_PLACES of the result a program; where the window has a
depth and a width, twice of both and of the warps. 3 channels by 3 x 3 x 3 to 64 take 1,564 us (once of both 1,886, cuDNN
1,845), by 3 x 3 x 1 1,614 us (cuDNN 2,693), 8 by 3 x 3 to 32 1,444 us (cuDNN 1,724), depthwise ones by 3 x 3 737 us
(cuDNN 2,525), transposed ones of 3 to 16 by 3 x 3 x 3 1,525 us (cuDNN 10,091). 64 channels by 1 x 1 are many: directly
level1/87 takes 13,706 us, by products 8,647.
"""

from triton.tools.tensor_descriptor import TensorDescriptor

BLOCK_M = 128
BLOCK_N = 256
BLOCK_K = 64
CHUNK = 4  # steps, of BLOCK_K, whose sum tensor cores make
GROUP_M = 8
NUM_WARPS = 8
NUM_STAGES = 3
CONV_M = 128
CONV_WARPS = 8
CONV_STAGES = 4
DIRECT_CHANNELS = 16
DIRECT_PLACES = 256
DIRECT_WARPS = 2


@triton.jit
def powers(bits):
    """2^k and 2^-k such that the number of those bits times 2^k is in [2^14, 2^15)."""
    exponent = tl.minimum(tl.maximum((bits >> 23) & 255, 15), 253)
    return ((268 - exponent) << 23).to(tl.float32, bitcast=True), ((exponent - 14) << 23).to(tl.float32, bitcast=True)


@triton.jit
def pair(v):
    """A number below 2^15 as the sum of two float16, which keep 23 bits of it, down to 2^-24."""
    high = v.to(tl.float16)
    return high, (v - high.to(tl.float32)).to(tl.float16)


@triton.jit
def largest_kernel(x_ptr, most_ptr, rows, cols, row_stride, col_stride, BR: tl.constexpr, BC: tl.constexpr):
    """The bits of the largest magnitude of each row that is finite, by atomics: an infinity would scale the rest of its
    sample to zero."""
    i = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    j = tl.program_id(1).to(tl.int64) * BC + tl.arange(0, BC)
    inside = (i < rows)[:, None] & (j < cols)[None, :]
    x = tl.load(x_ptr + i[:, None] * row_stride + j[None, :] * col_stride, mask=inside, other=0.0)
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    bits = tl.where(bits < 0x7F800000, bits, 0)
    tl.atomic_max(most_ptr + i, tl.max(bits, 1), mask=i < rows)


@triton.jit
def pairs_kernel(
    x_ptr, most_ptr, pairs_ptr, back_ptr, rows, cols, padded, row_stride, col_stride, BR: tl.constexpr, BC: tl.constexpr
):
    i = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    j = tl.program_id(1).to(tl.int64) * BC + tl.arange(0, BC)
    inside = (i < rows)[:, None] & (j < cols)[None, :]
    x = tl.load(x_ptr + i[:, None] * row_stride + j[None, :] * col_stride, mask=inside, other=0.0)
    up, down = powers(tl.load(most_ptr + i, mask=i < rows, other=0))
    high, low = pair(x * up[:, None])
    at = i[:, None] * 2 * padded + j[None, :]
    kept = (i < rows)[:, None] & (j < padded)[None, :]
    tl.store(pairs_ptr + at, high, mask=kept)
    tl.store(pairs_ptr + at + padded, low, mask=kept)
    if tl.program_id(1) == 0:
        tl.store(back_ptr + i, down, mask=i < rows)


@triton.jit
def row_pairs_kernel(x_ptr, pairs_ptr, back_ptr, cols, padded, row_stride, BLOCK: tl.constexpr):
    """The same where a row fits a program."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * row_stride + j, mask=j < cols, other=0.0)
    up, down = powers(tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0))
    high, low = pair(x * up)
    tl.store(pairs_ptr + row * 2 * padded + j, high, mask=j < padded)
    tl.store(pairs_ptr + row * 2 * padded + padded + j, low, mask=j < padded)
    tl.store(back_ptr + row, down)


def pairs(x):
    """float32 x (rows, k) -> float16 (rows, 2 padded): upper halves, then lower ones; and the factors of its rows."""
    rows, k = x.shape
    padded = triton.cdiv(k, 64) * 64
    made = torch.empty((rows, 2 * padded), dtype=torch.float16, device=x.device)
    back = torch.empty(rows, dtype=torch.float32, device=x.device)
    if x.stride(1) == 1 and padded <= 16384:
        block = triton.next_power_of_2(padded)
        row_pairs_kernel[(rows,)](
            x, made, back, k, padded, x.stride(0), BLOCK=block, num_warps=max(1, min(16, block // 512))
        )
        return made, back
    most = torch.zeros(rows, dtype=torch.int32, device=x.device)
    br, bc = (16, 256) if x.stride(1) == 1 else (64, 64)
    grid = (triton.cdiv(rows, br), triton.cdiv(padded, bc))
    largest_kernel[grid](x, most, rows, k, x.stride(0), x.stride(1), BR=br, BC=bc, num_warps=8)
    pairs_kernel[grid](x, most, made, back, rows, k, padded, x.stride(0), x.stride(1), BR=br, BC=bc, num_warps=8)
    return made, back


@triton.jit
def halves(x, BM: tl.constexpr, BN: tl.constexpr):
    return tl.split(tl.permute(tl.reshape(x, (BM, 2, BN // 2)), (0, 2, 1)))


@triton.jit
def put(
    part, a_back, b_back, added_ptr, y_ptr, batch, split, row, column, m, n,
    added_batch, added_row, added_col, y_batch, y_row, y_col, ADDED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    i, j = row + tl.arange(0, BM), column + tl.arange(0, BN)
    inside = (i[:, None] < m) & (j[None, :] < n)
    part = part * tl.load(a_back + batch * m + i, mask=i < m, other=0.0)[:, None]
    part = part * tl.load(b_back + batch * n + j, mask=j < n, other=0.0)[None, :]
    i, j = i.to(tl.int64)[:, None], j.to(tl.int64)[None, :]
    if ADDED:
        part += tl.load(added_ptr + batch * added_batch + i * added_row + j * added_col, mask=inside, other=0.0)
    tl.store(y_ptr + (batch + split).to(tl.int64) * y_batch + i * y_row + j * y_col, part, mask=inside)


@triton.jit
def product_kernel(
    a, b, a_back, b_back, added_ptr, y_ptr, batches, m, n, k, splits, share,
    added_batch, added_row, added_col, y_batch, y_row, y_col, ADDED: tl.constexpr, CHUNK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """a @ b.T of pairs. With several `splits` each makes the sum over its `share` of the steps, into a y of its own."""
    high, wide = tl.cdiv(m, BM), tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), splits * batches * high * wide, tl.num_programs(0), flatten=True):
        batch = tile // (high * wide) % batches
        split = tile // (high * wide * batches)
        of_batch = tile % (high * wide)
        group = of_batch // (GROUP * wide)
        height = tl.minimum(high - group * GROUP, GROUP)
        inner = of_batch % (GROUP * wide)
        row, column = (group * GROUP + inner % height) * BM, inner // height * BN
        acc = tl.zeros((BM, BN), tl.float32)
        total = tl.zeros((BM, BN), tl.float32)
        first = split * share
        steps = tl.minimum(share, k // BK - first)
        for step in range(0, 3 * steps):
            turn, start = step // steps, (first + step % steps) * BK
            p = a.load([batch * m + row, start + tl.where(turn == 0, k, 0)])
            q = b.load([batch * n + column, start + tl.where(turn == 1, k, 0)])
            acc = tl.dot(p, q.T, acc)
            if step % CHUNK == CHUNK - 1:
                total += acc
                acc = tl.zeros((BM, BN), tl.float32)
        left, right = halves(acc + total, BM, BN)
        parts = halves(left, BM, BN // 2) + halves(right, BM, BN // 2)
        for piece in tl.static_range(4):
            put(
                parts[piece], a_back, b_back, added_ptr, y_ptr, batch, split, row, column + piece * (BN // 4), m, n,
                added_batch, added_row, added_col, y_batch, y_row, y_col, ADDED, BM, BN // 4,
            )  # fmt: skip


@triton.jit
def sum_kernel(
    parts_ptr, added_ptr, y_ptr, splits, m, n, added_row, added_col, y_row, y_col,
    ADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    i, j = at // n, at % n
    total = tl.zeros((BLOCK,), tl.float32)
    parts_ptr += at
    for _ in range(splits):
        total += tl.load(parts_ptr, mask=i < m, other=0.0)
        parts_ptr += m * n
    if ADDED:
        total += tl.load(added_ptr + i * added_row + j * added_col, mask=i < m, other=0.0)
    tl.store(y_ptr + i * y_row + j * y_col, total, mask=i < m)


def product(a, b, y, added=None):
    """The product of pairs (batches m, 2 k) and (batches n, 2 k), and what is added, into y (batches, m, n)."""
    (a_pairs, a_back), (b_pairs, b_back) = a, b
    (batches, m, n), k = y.shape, a_pairs.shape[1] // 2
    bm, bn = min(BLOCK_M, max(64, triton.next_power_of_2(m))), min(BLOCK_N, max(64, triton.next_power_of_2(n)))
    programs = torch.cuda.get_device_properties(y.device).multi_processor_count
    tiles = batches * triton.cdiv(m, bm) * triton.cdiv(n, bn)
    steps = k // BLOCK_K
    splits = max(1, min(programs // tiles, steps // 16)) if batches == 1 else 1
    share = triton.cdiv(steps, splits)
    splits = triton.cdiv(steps, share)
    made = y if splits == 1 else torch.empty((splits, m, n), dtype=torch.float32, device=y.device)
    at = added.expand(y.shape).stride() if added is not None else (0, 0, 0)
    product_kernel[(min(splits * tiles, programs),)](
        TensorDescriptor(a_pairs, [batches * m, 2 * k], [2 * k, 1], [bm, BLOCK_K]),
        TensorDescriptor(b_pairs, [batches * n, 2 * k], [2 * k, 1], [bn, BLOCK_K]),
        a_back, b_back, added if splits == 1 else None, made, batches, m, n, k, splits, share, *at, *made.stride(),
        ADDED=added is not None and splits == 1, CHUNK=CHUNK, BM=bm, BN=bn, BK=BLOCK_K, GROUP=GROUP_M,
        num_warps=NUM_WARPS if bm * bn >= 128 * 128 else 4, num_stages=NUM_STAGES,
    )  # fmt: skip
    if splits > 1:
        sum_kernel[(triton.cdiv(m * n, 1024),)](
            made, added, y, splits, m, n, *at[1:], *y.stride()[1:], ADDED=added is not None, BLOCK=1024, num_warps=4
        )


def kept(b, keep):
    """The pairs of b, which are made again only when it has changed where it is a weight: `keep` says of which module,
    and its name."""
    if keep is None or b.is_inference():  # whose changes torch does not count
        return pairs(b)
    model, name = keep
    made, state = model.__dict__.setdefault("made_once", {}), (b.data_ptr(), b._version)
    if name not in made or made[name][0] != state:
        made[name] = (state, pairs(b))
    return made[name][1]


def split_mm(a, b, out=None, added=None, keep=None):
    """a (m, k) @ b (k, n) + added."""
    y = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device) if out is None else out
    product(pairs(a), kept(b.t(), keep), y.unsqueeze(0), added)
    return y


def split_addmm(added, a, b, out=None, keep=None):
    return split_mm(a, b, out, added, keep)


def rows_of(x):
    """(batches, rows, k) as (batches rows, k)."""
    x = x if x.stride(0) == x.shape[1] * x.stride(1) else x.contiguous()
    return x.as_strided((x.shape[0] * x.shape[1], x.shape[2]), (x.stride(1), x.stride(2)), x.storage_offset())


def split_bmm(a, b, out=None, added=None):
    """a (batches, m, k) @ b (batches, k, n) + added."""
    y = torch.empty((*a.shape[:2], b.shape[2]), dtype=a.dtype, device=a.device) if out is None else out
    product(pairs(rows_of(a)), pairs(rows_of(b.transpose(1, 2))), y, added)
    return y


def split_baddbmm(added, a, b, out=None):
    return split_bmm(a, b, out, added)


@triton.jit
def spread_kernel(
    x_ptr, most_ptr, pairs_ptr, n, c, d, h, w, dq, hq, wq, x_n, x_c, x_d, x_h, x_w, positions,
    GROUPS: tl.constexpr, CP: tl.constexpr, MERGED: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PD, PH, PW, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """x as pairs of float16, channels last, with the padding: [part, group, place % stride, n, d, h, w, channel]."""
    at = tl.program_id(0).to(tl.int64) * BP + tl.arange(0, BP)
    group = tl.program_id(1) % GROUPS
    channel = tl.program_id(1) // GROUPS * BC + tl.arange(0, BC)
    pw, rest = at % SW, at // SW  # as x lies: one plane after the other, a stride of 3 read all of it three times
    i_w = rest % wq
    rest = rest // wq
    i_h = rest % hq
    rest = rest // hq
    i_d = rest % dq
    rest = rest // dq
    image = rest % n
    rest = rest // n
    place = at
    if not MERGED:
        plane = positions // (SD * SH * SW)
        place = (rest * SW + pw) * plane + at // SW % plane
    z, y, x = i_d * SD + rest // SH - PD, i_h * SH + rest % SH - PH, i_w * SW + pw - PW
    inside = (at < positions) & (z >= 0) & (z < d) & (y >= 0) & (y < h) & (x >= 0) & (x < w)
    from_ = image * x_n + z * x_d + y * x_h + x * x_w
    value = tl.load(
        x_ptr + from_[:, None] + (group * c + channel)[None, :].to(tl.int64) * x_c,
        mask=inside[:, None] & (channel < c)[None, :], other=0.0,
    )  # fmt: skip
    up, _ = powers(tl.load(most_ptr + image, mask=at < positions, other=0))
    high, low = pair(value * up[:, None])
    to = (group * positions + place)[:, None] * CP + channel[None, :]
    kept = (at < positions)[:, None] & (channel < CP)[None, :]
    tl.store(pairs_ptr + to, high, mask=kept)
    tl.store(pairs_ptr + to + GROUPS * positions * CP, low, mask=kept)


@triton.jit
def filter_kernel(
    w_ptr, pairs_ptr, back_ptr, c, each, w_g, w_o, w_c, rows, parts,
    KT: tl.constexpr, KW: tl.constexpr, CP: tl.constexpr, MERGED: tl.constexpr, FLIPPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Filters as pairs: [group, tap, output channel of `rows`, (place in a row of the window,) channel]; the lower
    halves `parts` numbers further on."""
    own = tl.program_id(0)
    group, o = own // each, own % each
    w_ptr += group.to(tl.int64) * w_g + o.to(tl.int64) * w_o
    WINDOW: tl.constexpr = KT * KW
    most = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, c * WINDOW, BLOCK):
        t = start + tl.arange(0, BLOCK)
        v = tl.load(w_ptr + (t // WINDOW).to(tl.int64) * w_c + t % WINDOW, mask=t < c * WINDOW, other=0.0)
        most = tl.maximum(most, v.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    up, down = powers(tl.max(most, 0))
    tl.store(back_ptr + own, down)
    for start in range(0, WINDOW * CP, BLOCK):
        t = start + tl.arange(0, BLOCK)
        tap, channel = t // CP, t % CP
        from_ = WINDOW - 1 - tap if FLIPPED else tap
        inside = (t < WINDOW * CP) & (channel < c)
        v = tl.load(w_ptr + channel.to(tl.int64) * w_c + from_, mask=inside, other=0.0)
        high, low = pair(v * up)
        if MERGED:
            to = ((group * KT + tap // KW).to(tl.int64) * rows + o) * (KW * CP) + tap % KW * CP + channel
        else:
            to = ((group * WINDOW + tap).to(tl.int64) * rows + o) * CP + channel
        tl.store(pairs_ptr + to, high, mask=t < WINDOW * CP)
        tl.store(pairs_ptr + to + parts, low, mask=t < WINDOW * CP)


@triton.jit
def first_tap(phase, K: tl.constexpr, S: tl.constexpr, D: tl.constexpr, WS: tl.constexpr):
    """Of a transposed convolution: the first place of the window that reaches outputs of this phase, and how many do."""
    first = K
    for w in tl.static_range(min(WS, K)):
        first = tl.where(((phase + S * D * WS - w * D) % S == 0) & (first == K), w, first)
    return first, (K - first + WS - 1) // WS


@triton.jit
def put_places(
    acc, row, phase_d, phase_h, phase_w, group, column, most_ptr, back_ptr, bias_ptr, y_ptr, each, dq, hq, wq, rows,
    od, oh, ow, y_n, y_c, y_d, y_h, y_w, BASE_D, BASE_H, BASE_W,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Undo the scales, and store what of the padded places is a place of the result."""
    i, o = row + tl.arange(0, BM), column + tl.arange(0, BN)
    inner = i // wq  # one division after the other: by products of sizes 256 x 64 tiles spilled 2,660 bytes, not 1,324
    image = inner // hq // dq
    u_d = inner // hq % dq * SD + phase_d + BASE_D
    u_h = inner % hq * SH + phase_h + BASE_H
    u_w = i % wq * SW + phase_w + BASE_W
    inside = (i < rows) & (u_d >= 0) & (u_d < od) & (u_h >= 0) & (u_h < oh) & (u_w >= 0) & (u_w < ow)
    _, x_back = powers(tl.load(most_ptr + image, mask=inside, other=0))
    own = group * each + o
    acc = acc * x_back[:, None] * tl.load(back_ptr + own, mask=o < each, other=0.0)[None, :]
    if BIAS:
        acc += tl.load(bias_ptr + own, mask=o < each, other=0.0)[None, :]
    at = image.to(tl.int64) * y_n + u_d.to(tl.int64) * y_d + u_h.to(tl.int64) * y_h + u_w.to(tl.int64) * y_w
    tl.store(y_ptr + at[:, None] + own[None, :].to(tl.int64) * y_c, acc, mask=inside[:, None] & (o < each)[None, :])


@triton.jit
def conv_kernel(
    x, f, most_ptr, back_ptr, bias_ptr, y_ptr, each, dq, hq, wq, rows, od, oh, ow, y_n, y_c, y_d, y_h, y_w,
    BASE_D, BASE_H, BASE_W, OFF_D, OFF_H, OFF_W,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, WD: tl.constexpr, WH: tl.constexpr, WW: tl.constexpr,
    GROUPS: tl.constexpr, RUN: tl.constexpr, TRANSPOSED: tl.constexpr, BIAS: tl.constexpr, CHUNK: tl.constexpr,
    BOTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Each place of the window is a product: rows of x, moved by the place, with the filters' channels there; with
    BOTH halves of theirs at a time, so that x is read twice, not three times."""
    TURNS: tl.constexpr = 2 if BOTH else 3
    WIDTH: tl.constexpr = 2 * BN if BOTH else BN
    columns, group = tl.cdiv(each, BN), tl.program_id(1)
    column, rest = tl.program_id(0) % columns * BN, tl.program_id(0) // columns
    td, th, tw, fd, fh, fw, rd, rh, rw = KD, KH, KW, 0, 0, 0, 0, 0, 0
    PLANES: tl.constexpr = 1 if TRANSPOSED else SD * SH * SW
    if TRANSPOSED:  # outputs of a phase are reached by some places of the window only
        rd, rh, rw, rest = rest // (SW * SH) % SD, rest // SW % SH, rest % SW, rest // (SW * SH * SD)
        fd, td = first_tap(rd, KD, SD, DD, WD)
        fh, th = first_tap(rh, KH, SH, DH, WH)
        fw, tw = first_tap(rw, KW, SW, DW, WW)
    acc, total = tl.zeros((BM, WIDTH), tl.float32), tl.zeros((BM, WIDTH), tl.float32)
    along = (RUN + BK - 1) // BK
    steps = td * th * tw * along
    each_turn, across, down = tl.maximum(steps, 1), tl.maximum(tw, 1), tl.maximum(th, 1)
    for step in range(0, TURNS * steps):
        turn, t = step // each_turn, step % each_turn
        start, t = t % along * BK, t // along
        kw, kh, kd = t % across, t // across % down, t // (across * down)
        if TRANSPOSED:
            kd, kh, kw = fd + kd * WD, fh + kh * WH, fw + kw * WW
            move = (
                ((OFF_D + (rd - kd * DD) // SD) * hq + OFF_H + (rh - kh * DH) // SH) * wq + OFF_W + (rw - kw * DW) // SW
            )
        else:
            plane = (kd * DD % SD * SH + kh * DH % SH) * SW + kw * DW % SW
            move = (kd * DD // SD * hq + kh * DH // SH) * wq + kw * DW // SW + plane * rows
        tap = (group * KD + kd) * KH * KW + kh * KW + kw
        low, lower = tl.where(turn == 0, GROUPS, 0), tl.where(turn == 1, GROUPS, 0)
        p = x.load([(low + group) * PLANES * rows + rest * BM + move, start])
        q = f.load([tap * WIDTH if BOTH else (lower * KD * KH * KW + tap) * each + column, start])
        acc = tl.dot(p, q.T, acc)
        if step % CHUNK == CHUNK - 1:
            total += acc
            acc = tl.zeros((BM, WIDTH), tl.float32)
    acc = tl.where(steps > 0, acc + total, 0.0)  # no place of a dilated window may reach an output
    if BOTH:
        with_high, with_low = halves(acc, BM, WIDTH)
        acc = with_high + with_low
    pieces = halves(acc, BM, BN) if BN >= 64 else (acc,)  # 64-bit addresses of a whole 256 x 64 tile spill 2,360 bytes
    for piece in tl.static_range(2 if BN >= 64 else 1):
        put_places(
            pieces[piece], rest * BM, rd, rh, rw, group, column + piece * (BN // 2), most_ptr, back_ptr, bias_ptr, y_ptr,
            each, dq, hq, wq, rows, od, oh, ow, y_n, y_c, y_d, y_h, y_w, BASE_D, BASE_H, BASE_W, SD if TRANSPOSED else 1,
            SH if TRANSPOSED else 1, SW if TRANSPOSED else 1, BIAS, BM, BN // 2 if BN >= 64 else BN,
        )  # fmt: skip


def three(values, one):
    """Numbers of three dimensions, `one` for each of those that there are not."""
    return (one,) * (3 - len(values)) + tuple(values)


def spread(x, c, groups, size, room, step, pad, merged, run):
    """x as pairs of float16, channels last, with room for the padding, and the largest magnitude of each sample."""
    n, cp = x.shape[0], triton.cdiv(c, 8) * 8
    positions = n * room[0] * room[1] * room[2] * step[0] * step[1] * step[2]
    # the last rows of a window reach beyond the last place
    made = torch.empty(2 * groups * positions * cp + run, dtype=torch.float16, device=x.device)
    most = torch.zeros(n, dtype=torch.int32, device=x.device)
    of_sample = x.numel() // n
    grid = (n, triton.cdiv(of_sample, 8192))
    largest_kernel[grid](x, most, n, of_sample, of_sample, 1, BR=1, BC=8192, num_warps=8)
    bc = min(64, triton.next_power_of_2(cp))
    spread_kernel[(triton.cdiv(positions, 4096 // bc), groups * triton.cdiv(cp, bc))](
        x, most, made, n, c, *size, *room, x.stride(0), x.stride(1), *three(x.stride()[2:], 0), positions,
        GROUPS=groups, CP=cp, MERGED=merged, SD=step[0], SH=step[1], SW=step[2], PD=pad[0], PH=pad[1], PW=pad[2],
        BP=4096 // bc, BC=bc, num_warps=8,
    )  # fmt: skip
    return made, most


def filters(weight, c, each, groups, window, inputs_first, flipped, merged, height):
    """Filters as pairs of float16, and the factors of their scales. `height`: of a place's upper halves, which then
    lie before its lower ones; 0 where all upper halves do."""
    weight, cp = weight.contiguous(), triton.cdiv(c, 8) * 8
    size = groups * (height or each) * window[0] * window[1] * window[2] * cp
    made = (torch.empty if height in (0, each) else torch.zeros)(2 * size, dtype=torch.float16, device=weight.device)
    parts = height * cp * (window[2] if merged else 1) or size
    back = torch.empty(groups * each, dtype=torch.float32, device=weight.device)
    of_group = (c if inputs_first else each) * weight.stride(0)
    own, other = (weight.stride(1), weight.stride(0)) if inputs_first else weight.stride()[:2]
    filter_kernel[(groups * each,)](
        weight, made, back, c, each, of_group, own, other, 2 * height or each, parts,
        KT=window[0] * window[1], KW=window[2], CP=cp, MERGED=merged, FLIPPED=flipped, BLOCK=1024, num_warps=4,
    )  # fmt: skip
    return made, back


@triton.jit
def met(u, k, SIZE, STRIDE: tl.constexpr, PAD: tl.constexpr, DILATION: tl.constexpr, TRANSPOSED: tl.constexpr):
    """The place of x that meets place k of the window in place u of y, and whether there is one."""
    if TRANSPOSED:
        i = u + PAD - k * DILATION
        there = i >= 0
        if STRIDE > 1:
            there &= i % STRIDE == 0
            i = i // STRIDE
    else:
        i = u * STRIDE - PAD + k * DILATION
        there = i >= 0
    return i, there & (i < SIZE)


# Wide loads at one place of the window and narrow ones at the next would lie in threads differently, and what was read
# go through shared memory each time.
@triton.jit(do_not_specialize_on_alignment=["x_ptr"])
def direct_kernel(
    x_ptr, f_ptr, bias_ptr, y_ptr, c, each, d, h, w, od, oh, ow, x_n, x_c, x_d, x_h, x_w, y_n, y_c, y_d, y_h, y_w,
    GROUPS: tl.constexpr, PADDED: tl.constexpr, KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, TRANSPOSED: tl.constexpr, BIAS: tl.constexpr,
    BO: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """A convolution as it is written: BO channels of BR x BC places of y, one place of the window after the other."""
    high, wide, parts = tl.cdiv(od * oh, BR), tl.cdiv(ow, BC), PADDED // BO
    o = tl.program_id(0) % parts * BO + tl.arange(0, BO)
    tile = tl.program_id(0) // parts
    u_w = tile % wide * BC + tl.arange(0, BC)
    row = tile // wide % high * BR + tl.arange(0, BR)
    group = tile // (wide * high) % GROUPS
    n = (tile // (wide * high * GROUPS)).to(tl.int64)
    u_d, u_h = row // oh, row % oh
    x_ptr += n * x_n + (group * c).to(tl.int64) * x_c
    f_ptr += group * c * KD * KH * KW * PADDED
    total = tl.zeros((BO, BR, BC), tl.float32)
    ROWS: tl.constexpr = KH if KH * KW <= 27 else 1  # of the window, a step; 11 x 11 in one ran 41 times as long
    STEPS: tl.constexpr = KH // ROWS
    for step in range(c * KD * STEPS):
        ch, kd = step // STEPS // KD, step // STEPS % KD
        i_d, in_d = met(u_d, kd, d, SD, PD, DD, TRANSPOSED)
        for window_row in tl.static_range(ROWS):
            kh = step % STEPS + window_row
            i_h, in_h = met(u_h, kh, h, SH, PH, DH, TRANSPOSED)
            at = ch * x_c + i_d * x_d + i_h * x_h
            for kw in tl.static_range(KW):
                i_w, in_w = met(u_w, kw, w, SW, PW, DW, TRANSPOSED)
                there = (in_d & in_h)[:, None] & in_w[None, :]
                v = tl.load(x_ptr + at[:, None] + (i_w * x_w)[None, :], mask=there, other=0.0)
                f = tl.load(f_ptr + ((step * ROWS + window_row) * KW + kw) * PADDED + o)
                total += f[:, None, None] * v[None, :, :]
    own = group * each + o
    if BIAS:
        total += tl.load(bias_ptr + own, mask=o < each, other=0.0)[:, None, None]
    at = own.to(tl.int64)[:, None, None] * y_c + (u_d * y_d + u_h * y_h)[None, :, None] + (u_w * y_w)[None, None, :]
    there = (o < each)[:, None, None] & (u_d < od)[None, :, None] & (u_w < ow)[None, None, :]
    tl.store(y_ptr + n * y_n + at, total, mask=there)


def direct_convolution(x, weight, bias, y, c, each, window, size, out, s, p, d, transposed, groups):
    times = 2 if window[0] > 1 and window[2] > 1 and each > DIRECT_CHANNELS else 1
    if window[2] == 1 and size[2] < 64 and not transposed and (s[1], s[2], p[2]) == (1, 1, 0):  # short rows as one
        w = size[2]
        window, size, out = (window[0], 1, window[1]), (size[0], 1, size[1] * w), (out[0], 1, out[1] * w)
        s, p, d = (s[0], 1, 1), (p[0], 0, p[1] * w), (d[0], 1, d[1] * w)
    bo = min(DIRECT_CHANNELS * times, triton.next_power_of_2(each))
    bc = min(256, triton.next_power_of_2(out[2]))
    places = DIRECT_PLACES * times * min(4, DIRECT_CHANNELS * times // bo)  # fewer channels: more places
    br = min(places // bc, triton.next_power_of_2(out[0] * out[1]))
    padded, taps = triton.cdiv(each, bo) * bo, window[0] * window[1] * window[2]
    f = weight.reshape(groups, c, each, taps) if transposed else weight.reshape(groups, each, c, taps).transpose(1, 2)
    if each > 1:  # what one place of the window is multiplied by lies together
        made = (torch.empty if padded == each else torch.zeros)(
            (groups, c, taps, padded), dtype=weight.dtype, device=weight.device
        )
        made[..., :each].copy_(f.transpose(2, 3))
        f = made
    direct_kernel[(y.shape[0] * groups * triton.cdiv(out[0] * out[1], br) * triton.cdiv(out[2], bc) * (padded // bo),)](
        x, f.contiguous(), bias, y, c, each, *size, *out,
        x.stride(0), x.stride(1), *three(x.stride()[2:], 0), y.stride(0), y.stride(1), *three(y.stride()[2:], 0),
        GROUPS=groups, PADDED=padded, KD=window[0], KH=window[1], KW=window[2],
        SD=s[0], SH=s[1], SW=s[2], PD=p[0], PH=p[1], PW=p[2], DD=d[0], DH=d[1], DW=d[2],
        TRANSPOSED=transposed, BIAS=bias is not None, BO=bo, BR=br, BC=bc, num_warps=DIRECT_WARPS * times,
    )  # fmt: skip
    return y


def split_convolution(
    x, weight, stride, padding, dilation, transposed, output_padding, groups, bias=None, directly=False
):
    """What torch.convolution gives, x and weight being float32; `directly`: not as products."""
    dims, n, window, size = x.dim() - 2, x.shape[0], three(weight.shape[2:], 1), three(x.shape[2:], 1)
    c, each = x.shape[1] // groups, (weight.shape[1] if transposed else weight.shape[0] // groups)
    last = torch.channels_last if dims == 2 else torch.channels_last_3d
    is_last = dims > 1 and any(t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in (x, weight))
    x = x if x.is_contiguous() or (dims > 1 and x.is_contiguous(memory_format=last)) else x.contiguous()
    s, p, d, more = three(stride, 1), three(padding, 0), three(dilation, 1), three(output_padding, 0)
    reach = [e * (k - 1) for e, k in zip(d, window)]
    if transposed:
        out = [(a - 1) * t - 2 * q + r + m + 1 for a, t, q, r, m in zip(size, s, p, reach, more)]
    else:
        out = [(a + 2 * q - r - 1) // t + 1 for a, t, q, r in zip(size, s, p, reach)]
    y = torch.empty(
        (n, groups * each, *out[3 - dims :]), dtype=x.dtype, device=x.device,
        memory_format=last if is_last else torch.contiguous_format,
    )  # fmt: skip
    if directly:
        return direct_convolution(x, weight, bias, y, c, each, window, size, out, s, p, d, transposed, groups)
    spaced = transposed and max(s) > 1  # a transposed one of stride 1 is an ordinary one with the window turned round
    merged = not spaced and d[2] == 1
    if spaced:
        first, off, step = [q // t for q, t in zip(p, s)], [r // t for r, t in zip(reach, s)], (1, 1, 1)
        room = [(q + o - 1) // t - f + 1 + e for q, o, t, f, e in zip(p, out, s, first, off)]
        pad, base = [e - f for e, f in zip(off, first)], [t * f - q for t, f, q in zip(s, first, p)]
    else:
        off, base, step, pad = (0, 0, 0), (0, 0, 0), s, [r - q for r, q in zip(reach, p)] if transposed else p
        room = [o + r // t for o, r, t in zip(out, reach, s)]
    cp = triton.cdiv(c, 8) * 8
    run = cp * (window[2] if merged else 1)  # numbers that lie together in a row of the window
    x_pairs, most = spread(x, c, groups, size, room, step, pad, merged, run)
    bn = min(128, max(16, triton.next_power_of_2(each)))
    both = bn <= 32
    f_pairs, back = filters(weight, c, each, groups, window, transposed, transposed and not spaced, merged, both * bn)
    rows = n * room[0] * room[1] * room[2]
    planes = step[0] * step[1] * (1 if merged else step[2])
    bk = 64 if run % 64 == 0 or run > 128 else 32 if run > 16 else 16
    bm, warps, stages = {  # by outputs of a place: a phase of a transposed one has few places of the window
        (32, False): (256, 8, CONV_STAGES),
        (32, True): (256, 8, 3),
        (64, False): (256, 8, 3),
        (64, True): (128, 4, CONV_STAGES),
    }.get((max(32, bn), spaced), (CONV_M if bk == 64 else 256, CONV_WARPS, CONV_STAGES))
    between = [next(w for w in range(1, t + 1) if w * e % t == 0) for t, e in zip(s, d)]  # places for the same outputs
    phases = s[0] * s[1] * s[2] if spaced else 1
    conv_kernel[(triton.cdiv(each, bn) * phases * triton.cdiv(rows, bm), groups)](
        TensorDescriptor(x_pairs, [2 * groups * planes * rows, run], [cp * (step[2] if merged else 1), 1], [bm, bk]),
        TensorDescriptor(f_pairs, [f_pairs.numel() // run, run], [run, 1], [2 * bn if both else bn, bk]),
        most, back, bias, y, each, *room, rows, *out, y.stride(0), y.stride(1), *three(y.stride()[2:], 0), *base, *off,
        KD=window[0], KH=window[1], KW=1 if merged else window[2], SD=s[0], SH=s[1], SW=1 if merged else s[2],
        DD=d[0], DH=d[1], DW=d[2], WD=between[0], WH=between[1], WW=between[2],
        GROUPS=groups, RUN=run, TRANSPOSED=spaced, BIAS=bias is not None, CHUNK=CHUNK * BLOCK_K // bk,
        BOTH=both, BM=bm, BN=bn, BK=bk, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y
