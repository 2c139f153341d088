# says: weights are unpacked in registers on their way to the tensor cores; programs share the sums evenly
# task: int4_matmul = int4_matmul(x, packed, scales, self.group)
# search: PROGRAMS_PER_SM = 1 2 3 4 6 12
# search: NUM_WARPS = 2 4 8
"""Linear layer with 4-bit weights. Two rows of the weight share a byte, so even and odd columns of x are two
products: no interleaving in registers. A block of k is one group of scales, which multiplies the block's product (in
float32, so the weight itself is never rounded).

Up to 16 tokens, instructions are a limit before memory is, so `few_kernel` unpacks 32 bits at a time. A word is four
columns of a row of bytes; the words of two neighbouring rows become two words that hold two columns of both. In such
a word each shift by 4 bits brings down the two weights of one register of an mma: a mask, the bits that make a float
of them, and a subtraction of both at once. The tile of words has four dimensions (rows that lanes share, columns,
rows of a thread, words of a thread) because a thread then loads just what its mma multiplies, so that they never
pass through shared memory; the next group's, with its scales, are loaded while this one's are multiplied.

The groups of all tiles of columns are one line, which the programs share evenly (stream-k); each writes its part of a
tile's sum, and a second kernel adds the parts in their order. `int4_kernel` does what is left: more tokens, float32,
columns that are not eight to a word pair.

On an H200 with a cold L2, 16 tokens through 8192 x 28672 (27 us would read the weights): 50.3 us; 52.9 where whole
shares of a tile went to 2 x 112 programs, 54.4 with masks instead of clamped addresses and a row length that the
compiler does not know, 58.7 with each group's scales loaded when they are needed; then 61.4 with 4 programs a
multiprocessor, 69.8 with 12, and of 2 warps 61.6 with 12, of 8 warps 68.9 with 3; 80.3 without `few_kernel`. What lost
against 50.3: weights of a product for each warp (65.1), the 8 subtracted by another mma (65.5), three programs a
multiprocessor of 168 registers (66.5), programs of one warp (71.5). In `int4_kernel` a block of x is one load whose
even and odd columns are split in registers: two loads of 2 bytes each, which cannot reach shared memory ahead of
time, took 149.8 us instead of 83.4.
"""

BLOCK_M = 64  # or as many as there are tokens
BLOCK_N = 128
PROGRAMS_PER_SM = 2  # of few_kernel; two are resident: 222 registers a thread
LOOP_PROGRAMS = 16  # of int4_kernel, likewise
NUM_WARPS = 4  # of few_kernel, 64 columns each


@triton.jit
def less_eight(number, dtype: tl.constexpr):
    """A whole number below 16, less 8: the last bits of 2^7 (2^10 in float16) + number. Conversions are slower."""
    if dtype == tl.float16:
        return (number.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True) - 1032.0
    return ((number.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True) - 136.0).to(dtype)


@triton.jit
def both_rows(pair, bits, dtype: tl.constexpr, HALF: tl.constexpr, BN: tl.constexpr):
    """Weights of an even and an odd row from bits 0-3 and 16-19, as rows of a block; `bits`: of 2^7 or 2^10, twice."""
    pair = (pair & 0x000F000F) | bits  # an argument: one instruction takes one constant
    eight: tl.constexpr = 1032.0 if dtype == tl.float16 else 136.0
    even = pair.to(tl.int16).to(dtype, bitcast=True) - eight
    odd = (pair >> 16).to(tl.int16).to(dtype, bitcast=True) - eight
    return tl.reshape(tl.permute(tl.join(even, odd), (0, 1, 2, 7, 5, 6, 3, 4)), (HALF, BN))


@triton.jit
def words_of(packed_ptr, tile, group, words: tl.constexpr, PAIRS: tl.constexpr, HALF: tl.constexpr):
    """A group of a tile of columns; beyond the last column is the last again."""
    lane = tl.arange(0, 4)[:, None, None, None]
    turn = tl.arange(0, HALF // 4)[None, None, :, None]
    row = turn // 4 * 16 + lane * 4 + turn % 4  # four rows, one after the other, for each lane
    pair = tl.arange(0, PAIRS)[None, :, None, None] * 2
    column = tl.minimum(tile * 2 * PAIRS + pair, words - 2) + tl.arange(0, 2)[None, None, None, :]
    return tl.load(packed_ptr + (group * HALF).to(tl.int64) * words + row * words + column)


@triton.jit
def scales_of(scale_ptr, tile, group, n, BN: tl.constexpr):
    j = tile * BN + tl.arange(0, BN)
    return tl.load(scale_ptr + group.to(tl.int64) * n + j, mask=j < n, other=0.0)


@triton.jit
def by_registers(word, PAIRS: tl.constexpr, HALF: tl.constexpr):
    """Words of two columns of two rows each, and the same 8 bits on."""
    square = tl.reshape(word, (4, PAIRS, HALF // 16, 2, 2, 2))  # lane, pair, 16 rows, two of two rows, word of pair
    above, below = tl.split(tl.permute(square, (2, 0, 3, 5, 1, 4)))
    left = (above & 0xFFFF) | (below << 16)
    right = ((above >> 16) & 0xFFFF) | (below & -65536)
    return tl.join(tl.join(left, right), tl.join(left >> 8, right >> 8))


@triton.jit
def few_kernel(
    x_ptr, packed_ptr, scale_ptr, part_ptr, m, n, k, bits, share, units,
    words: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """A unit is a group of a tile of columns; every program has `share` of them, one after the other."""
    PAIRS: tl.constexpr = BN // 8  # of words: what a thread has of a row
    i = tl.arange(0, BM)
    x_at = tl.minimum(i, m - 1)[:, None].to(tl.int64) * k + tl.arange(0, 2 * HALF)[None, :]
    groups = k // (2 * HALF)
    first = tl.program_id(0) * share
    end = tl.minimum(first + share, units)
    tile = first // groups
    group = first % groups
    x = tl.load(x_ptr + group * 2 * HALF + x_at)
    word = words_of(packed_ptr, tile, group, words, PAIRS, HALF)
    raw = scales_of(scale_ptr, tile, group, n, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for unit in tl.range(first, end):
        scale = tl.reshape(tl.permute(tl.reshape(raw, (PAIRS, 2, 4)), (2, 1, 0)), (BN,)).to(tl.float32)
        even, odd = tl.split(tl.reshape(x, (BM, HALF, 2)))
        four = by_registers(word, PAIRS, HALF)
        ends = group == groups - 1
        group = tl.where(ends, 0, group + 1)
        next_tile = tile + ends.to(tl.int32)  # one beyond the last is the last again, and has no scales
        x = tl.load(x_ptr + group * 2 * HALF + x_at)
        word = words_of(packed_ptr, next_tile, group, words, PAIRS, HALF)
        raw = scales_of(scale_ptr, next_tile, group, n, BN)
        low = both_rows(four, bits, x.dtype, HALF, BN)
        high = both_rows(four >> 4, bits, x.dtype, HALF, BN)
        acc += tl.dot(odd, high, tl.dot(even, low)) * scale[None, :]
        if ends | (unit == end - 1):
            whole = tl.reshape(tl.permute(tl.reshape(acc, (BM, 4, 2, PAIRS)), (0, 3, 2, 1)), (BM, BN))
            slot = tl.program_id(0) - tile * groups // share  # the first program of a tile writes its first part
            j = tile * BN + tl.arange(0, BN)
            at = slot.to(tl.int64) * m * n + i[:, None].to(tl.int64) * n + j[None, :]
            tl.store(part_ptr + at, whole.to(part_ptr.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))
            acc = tl.zeros((BM, BN), tl.float32)
            tile = next_tile


@triton.jit
def int4_kernel(
    x_ptr, packed_ptr, scale_ptr, part_ptr, m, n, k, share,
    BM: tl.constexpr, BN: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) % tl.cdiv(m, BM) * BM + tl.arange(0, BM)
    j = tl.program_id(0) // tl.cdiv(m, BM) * BN + tl.arange(0, BN)
    t = tl.arange(0, HALF)
    whole = tl.arange(0, 2 * HALF)[None, :]
    groups = k // (2 * HALF)
    first = tl.program_id(1) * share
    acc = tl.zeros((BM, BN), tl.float32)
    for group in tl.range(first, tl.minimum(first + share, groups)):
        row = group * HALF + t
        x = tl.load(x_ptr + i[:, None].to(tl.int64) * k + group * 2 * HALF + whole, mask=i[:, None] < m, other=0.0)
        even, odd = tl.split(tl.reshape(x, (BM, HALF, 2)))
        both = tl.load(packed_ptr + row[:, None].to(tl.int64) * n + j[None, :], mask=j[None, :] < n, other=0)
        low = less_eight(both & 15, even.dtype)
        high = less_eight(both >> 4, even.dtype)
        scale = tl.load(scale_ptr + group.to(tl.int64) * n + j, mask=j < n, other=0.0).to(tl.float32)
        acc += tl.dot(odd, high, tl.dot(even, low)) * scale[None, :]
    at = tl.program_id(1).to(tl.int64) * m * n + i[:, None].to(tl.int64) * n + j[None, :]
    tl.store(part_ptr + at, acc.to(part_ptr.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))


@triton.jit
def add_kernel(part_ptr, y_ptr, size, parts, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(parts):
        total += tl.load(part_ptr + part * size.to(tl.int64) + at, mask=at < size, other=0.0)
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=at < size)


@triton.jit
def add_tile_kernel(part_ptr, y_ptr, m, n, groups, share, SLOTS: tl.constexpr, BN: tl.constexpr, BLOCK: tl.constexpr):
    """A row of BLOCK columns, which one tile has: the parts of the programs that had groups of it, in their order."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.program_id(0) * BLOCK // BN
    parts = (tile * groups + groups - 1) // share - tile * groups // share
    at = tl.program_id(1).to(tl.int64) * n + j
    total = tl.zeros([BLOCK], tl.float32)
    for slot in tl.static_range(SLOTS):  # loads that do not wait for one another
        part = part_ptr + tl.cast(slot, tl.int64) * m * n + at
        total += tl.load(part, mask=(j < n) & (parts >= slot), other=0.0)
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=j < n)


def in_words(x, packed, group):
    """Whether `few_kernel` can do it: rows are whole words, an mma has all tokens, two weights fit 32 bits."""
    few = x.shape[0] <= 16 and x.dtype != torch.float32 and group % 32 == 0
    return few and packed.shape[1] % 8 == 0 and packed.data_ptr() % 8 == 0


def few_matmul(x, packed, scales, group, y):
    (m, k), n = x.shape, packed.shape[1]
    bn, groups = 64 * NUM_WARPS, k // group
    units = triton.cdiv(n, bn) * groups
    share = triton.cdiv(units, PROGRAMS_PER_SM * torch.cuda.get_device_properties(x.device).multi_processor_count)
    tiles = range(triton.cdiv(n, bn))
    slots = max((t * groups + groups - 1) // share - t * groups // share + 1 for t in tiles)
    parts = torch.empty((slots, m, n), dtype=torch.float32, device=x.device) if slots > 1 else y
    bits = 0x64006400 if x.dtype == torch.float16 else 0x43004300
    few_kernel[(triton.cdiv(units, share),)](
        x, packed.view(torch.int32), scales, parts, m, n, k, bits, share, units, words=n // 4, BM=16, BN=bn,
        HALF=group // 2, num_warps=NUM_WARPS, num_stages=1,
    )  # fmt: skip
    if slots > 1:
        add_tile_kernel[(triton.cdiv(n, min(bn, 256)), m)](
            parts, y, m, n, groups, share, SLOTS=slots, BN=bn, BLOCK=min(bn, 256), num_warps=1
        )
    return y


def int4_matmul(x, packed, scales, group):
    x, packed, scales = x.contiguous(), packed.contiguous(), scales.contiguous()
    (m, k), n = x.shape, packed.shape[1]
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if in_words(x, packed, group):
        return few_matmul(x, packed, scales, group, y)
    bm, bn = min(BLOCK_M, max(16, triton.next_power_of_2(m))), BLOCK_N
    tiles = triton.cdiv(m, bm) * triton.cdiv(n, bn)
    wanted = LOOP_PROGRAMS * torch.cuda.get_device_properties(x.device).multi_processor_count
    groups = k // group
    share = triton.cdiv(groups, max(1, min(wanted // tiles, groups)))
    splits = triton.cdiv(groups, share)
    parts = torch.empty((splits, m, n), dtype=torch.float32, device=x.device) if splits > 1 else y
    int4_kernel[(tiles, splits)](
        x, packed, scales, parts, m, n, k, share, BM=bm, BN=bn, HALF=group // 2, num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        add_kernel[(triton.cdiv(m * n, 512),)](parts, y, m * n, splits, BLOCK=512, num_warps=4)
    return y
