# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803, N806
# says: weights are unpacked in registers on their way to the tensor cores; the sum is shared where tokens are few
# task: int4_matmul = int4_matmul(x, packed, scales, self.group)
# search: PROGRAMS_PER_SM = 2 4 6 12
# search: NUM_WARPS = 2 4 8
"""Linear layer with 4-bit weights. Two rows of the weight share a byte, so even and odd columns of x are two
products: no interleaving in registers. A block of k is one group of scales, which multiplies the block's product (in
float32, so the weight itself is never rounded). Few tokens: the sum is cut until PROGRAMS_PER_SM programs keep each
multiprocessor loading, and a second kernel adds the parts.

Up to 16 tokens, instructions are a limit before memory is, so `few_kernel` unpacks 32 bits at a time. A word is four
columns of a row of bytes; the words of two neighbouring rows become two words that hold two columns of both. In such
a word each shift by 4 bits brings down the two weights of one register of an mma: a mask, the bits that make a float
of them, and a subtraction of both at once. The tile of words has four dimensions (rows that lanes share, columns,
rows of a thread, words of a thread) because a thread then loads just what its mma multiplies, so that they never
pass through shared memory; the next group's are loaded while this one's are multiplied. For sm_90 its loop has 768
instructions and 1354 issue cycles for 64 rows of 256 bytes by 4 warps; `int4_kernel`, which does what is left (more
tokens, float32, columns that are not whole words), has 556 and 908 for half of that, and had 724 and 1194 while each
weight was made in float32.

On an H200 with a cold L2, 16 tokens through 8192 x 28672 (27 us would read the weights): 58.7 us with 2 programs a
multiprocessor of 4 warps, 61.4 with 4, 61.5 with 6, 65.9 with 8, 69.8 with 12; of 2 warps 83.1 with 3, 67.1 with 6,
61.6 with 12; of 8 warps 68.9 with 3, 79.5 with 6; 80.3 without `few_kernel`. Without the subtraction in its loop (8
times the sum of x at the end of a group) it took 61.0 instead of 61.5: instructions are not the only limit. In
`int4_kernel` a block of x is one load whose even and odd columns are split in registers: two loads of 2 bytes each,
which cannot reach shared memory ahead of time, took 149.8 us instead of 83.4.
"""

import torch
import triton
import triton.language as tl

BLOCK_M = 64  # or as many as there are tokens
BLOCK_N = 128
PROGRAMS_PER_SM = 2  # as many as are resident: 250 registers a thread
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
def few_kernel(
    x_ptr, packed_ptr, scale_ptr, part_ptr, m, n, k, words, bits, share,
    BM: tl.constexpr, BN: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    PAIRS: tl.constexpr = BN // 8  # of words: what a thread has of a row
    i = tl.arange(0, BM)
    block = tl.program_id(0)
    j = block * BN + tl.arange(0, BN)
    lane = tl.arange(0, 4)[:, None, None, None]
    turn = tl.arange(0, HALF // 4)[None, None, :, None]
    column = block * 2 * PAIRS + tl.arange(0, PAIRS)[None, :, None, None] * 2 + tl.arange(0, 2)[None, None, None, :]
    word_at = (turn // 4 * 16 + lane * 4 + turn % 4) * words + column  # four rows, one after the other, for each lane
    x_at = i[:, None].to(tl.int64) * k + tl.arange(0, 2 * HALF)[None, :]
    first = tl.program_id(1) * share
    last = tl.minimum(first + share, k // (2 * HALF))
    x = tl.load(x_ptr + first * 2 * HALF + x_at, mask=i[:, None] < m, other=0.0)
    word = tl.load(packed_ptr + (first * HALF).to(tl.int64) * words + word_at, mask=column < words, other=0)
    acc = tl.zeros((BM, BN), tl.float32)
    for group in tl.range(first, last):
        even, odd = tl.split(tl.reshape(x, (BM, HALF, 2)))
        tile = tl.reshape(word, (4, PAIRS, HALF // 16, 2, 2, 2))  # lane, pair, 16 rows, two of two rows, word of pair
        above, below = tl.split(tl.permute(tile, (2, 0, 3, 5, 1, 4)))
        left = (above & 0xFFFF) | (below << 16)
        right = ((above >> 16) & 0xFFFF) | (below & -65536)
        four = tl.join(tl.join(left, right), tl.join(left >> 8, right >> 8))
        after = tl.minimum(group + 1, last - 1)
        x = tl.load(x_ptr + after * 2 * HALF + x_at, mask=i[:, None] < m, other=0.0)
        word = tl.load(packed_ptr + (after * HALF).to(tl.int64) * words + word_at, mask=column < words, other=0)
        low = both_rows(four, bits, x.dtype, HALF, BN)
        high = both_rows(four >> 4, bits, x.dtype, HALF, BN)
        scale = tl.load(scale_ptr + group.to(tl.int64) * n + j, mask=j < n, other=0.0).to(tl.float32)
        scale = tl.reshape(tl.permute(tl.reshape(scale, (PAIRS, 2, 4)), (2, 1, 0)), (BN,))
        acc += tl.dot(odd, high, tl.dot(even, low)) * scale[None, :]
    acc = tl.reshape(tl.permute(tl.reshape(acc, (BM, 4, 2, PAIRS)), (0, 3, 2, 1)), (BM, BN))
    at = tl.program_id(1).to(tl.int64) * m * n + i[:, None].to(tl.int64) * n + j[None, :]
    tl.store(part_ptr + at, acc.to(part_ptr.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))


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


def in_words(x, packed, group):
    """Whether `few_kernel` can do it: rows are whole words, an mma has all tokens, two weights fit 32 bits."""
    few = x.shape[0] <= 16 and x.dtype != torch.float32 and group % 32 == 0
    return few and packed.shape[1] % 4 == 0 and packed.data_ptr() % 4 == 0


def int4_matmul(x, packed, scales, group):
    x, packed, scales = x.contiguous(), packed.contiguous(), scales.contiguous()
    (m, k), n = x.shape, packed.shape[1]
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    few = in_words(x, packed, group)
    bm, bn = min(BLOCK_M, max(16, triton.next_power_of_2(m))), 64 * NUM_WARPS if few else BLOCK_N
    tiles = triton.cdiv(m, bm) * triton.cdiv(n, bn)
    wanted = PROGRAMS_PER_SM * torch.cuda.get_device_properties(x.device).multi_processor_count
    groups = k // group
    share = triton.cdiv(groups, max(1, min(wanted // tiles, groups)))
    splits = triton.cdiv(groups, share)
    parts = torch.empty((splits, m, n), dtype=torch.float32, device=x.device) if splits > 1 else y
    if few:
        bits = 0x64006400 if x.dtype == torch.float16 else 0x43004300
        few_kernel[(tiles, splits)](
            x, packed.view(torch.int32), scales, parts, m, n, k, n // 4, bits, share, BM=bm, BN=bn, HALF=group // 2,
            num_warps=NUM_WARPS, num_stages=1,
        )  # fmt: skip
    else:
        int4_kernel[(tiles, splits)](
            x, packed, scales, parts, m, n, k, share, BM=bm, BN=bn, HALF=group // 2, num_warps=4, num_stages=3,
        )  # fmt: skip
    if splits > 1:
        add_kernel[(triton.cdiv(m * n, 512),)](parts, y, m * n, splits, BLOCK=512, num_warps=4)
    return y
