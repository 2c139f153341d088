# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: weights are unpacked in registers on their way to the tensor cores; the sum is shared where tokens are few
# task: int4_matmul = int4_matmul(x, packed, scales, self.group)
# search: BLOCK_N = 128 256
# search: PROGRAMS_PER_SM = 8 16 24
# search: NUM_WARPS = 4 8
# search: NUM_STAGES = 2 3 4
"""Linear layer with 4-bit weights. Two rows of the weight share a byte, so even and odd columns of x are two
products: no interleaving in registers. A block of k is one group of scales, which multiplies the block's product (in
float32, so the weight itself is never rounded). Few tokens: the sum is cut until PROGRAMS_PER_SM programs keep each
multiprocessor loading, and a second kernel adds the parts.

On an H200, 16 tokens through 8192 x 28672 (27 us would read the weights): 83.4 us with 128 columns a program by 4
warps, 16 programs a multiprocessor and three stages, 88.0 with 24 programs, 90.2 with two stages, 105.1 with 256
columns by 8 warps, 108.2 with 128 by 8. A block of x is one load whose even and odd columns are split in registers: as
two loads of 2 bytes each, which cannot reach shared memory ahead of time, it took 149.8. Triton gives loads through
shared memory no policy for the L2.
"""

import torch
import triton
import triton.language as tl

BLOCK_M = 64  # or as many as there are tokens
BLOCK_N = 128
PROGRAMS_PER_SM = 16
NUM_WARPS = 4
NUM_STAGES = 3


@triton.jit
def less_eight(number):
    """A whole number below 16, less 8, as a float: the last bits of 2^23 + number. Conversions are slower."""
    return (number.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - 8388616.0


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
        low = less_eight(both & 15).to(even.dtype)
        high = less_eight(both >> 4).to(even.dtype)
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


def int4_matmul(x, packed, scales, group):
    x, packed, scales = x.contiguous(), packed.contiguous(), scales.contiguous()
    (m, k), n = x.shape, packed.shape[1]
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    bm = min(BLOCK_M, max(16, triton.next_power_of_2(m)))
    tiles = triton.cdiv(m, bm) * triton.cdiv(n, BLOCK_N)
    wanted = PROGRAMS_PER_SM * torch.cuda.get_device_properties(x.device).multi_processor_count
    groups = k // group
    share = triton.cdiv(groups, max(1, min(wanted // tiles, groups)))
    splits = triton.cdiv(groups, share)
    parts = torch.empty((splits, m, n), dtype=torch.float32, device=x.device) if splits > 1 else y
    int4_kernel[(tiles, splits)](
        x, packed, scales, parts, m, n, k, share, BM=bm, BN=BLOCK_N, HALF=group // 2,
        num_warps=NUM_WARPS, num_stages=NUM_STAGES,
    )  # fmt: skip
    if splits > 1:
        add_kernel[(triton.cdiv(m * n, 512),)](parts, y, m * n, splits, BLOCK=512, num_warps=4)
    return y
