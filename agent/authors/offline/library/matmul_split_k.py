# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, E501, N803
# order: 1
# says: the sum is shared by several programs, whose parts a second kernel adds: few tiles of result still fill the GPU
# fits: split_matmul(a, b) = a @ b where a: M K, b: K N<257
# fits: split_matmul(a, b) = a @ b where a: M<257 K, b: K N
# fits: split_matmul(a, b.t()) = F.linear(a, weight=b) where a: M<257 K, b: N K
# search: BLOCK_M = 16 32 64 128
# search: BLOCK_N = 16 32 64 128 256
# search: BLOCK_K = 32 64 128 256
# search: PROGRAMS_PER_SM = 1 2 4 8
# search: NUM_WARPS = 2 4 8
# search: NUM_STAGES = 2 3 4 5
"""Matrix product for a result of few tiles and a long sum: a few tokens times a weight, or the gradient of a narrow one.

The tensor cores idle here whatever is done; what counts is that enough loads are in flight, so blocks are long in k and
the sum is cut until there are PROGRAMS_PER_SM programs for each multiprocessor. Parts are float32 and are added in a
fixed order by a second kernel: the same result every time, which atomics would not give.
"""

import torch
import triton
import triton.language as tl

BLOCK_M = 64
BLOCK_N = 64
BLOCK_K = 128
PROGRAMS_PER_SM = 2
NUM_WARPS = 4
NUM_STAGES = 4


@triton.jit
def part_kernel(
    a_ptr, b_ptr, part_ptr, m, n, k, share, a_row, a_col, b_row, b_col,
    INPUT_PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    i = (tl.program_id(0) % tl.cdiv(m, BM) * BM + tl.arange(0, BM)).to(tl.int64)
    j = (tl.program_id(0) // tl.cdiv(m, BM) * BN + tl.arange(0, BN)).to(tl.int64)
    first = tl.program_id(1) * share
    end = tl.minimum(first + share, k)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(first, end, BK):
        t = (start + tl.arange(0, BK)).to(tl.int64)
        a_at = i[:, None] * a_row + t[None, :] * a_col
        b_at = t[:, None] * b_row + j[None, :] * b_col
        p = tl.load(a_ptr + a_at, mask=(i[:, None] < m) & (t[None, :] < end), other=0.0)
        q = tl.load(b_ptr + b_at, mask=(t[:, None] < end) & (j[None, :] < n), other=0.0)
        acc = tl.dot(p, q, acc, input_precision=INPUT_PRECISION)
    at = tl.program_id(1).to(tl.int64) * m * n + i[:, None] * n + j[None, :]
    tl.store(part_ptr + at, acc.to(part_ptr.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))


@triton.jit
def add_kernel(part_ptr, y_ptr, size, parts, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(parts):
        total += tl.load(part_ptr + part * size.to(tl.int64) + at, mask=at < size, other=0.0)
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=at < size)


def split_matmul(a, b):
    (m, k), n = a.shape, b.shape[1]
    y = torch.empty((m, n), dtype=a.dtype, device=a.device)
    bm = min(BLOCK_M, max(16, triton.next_power_of_2(m)))
    bn = min(BLOCK_N, max(16, triton.next_power_of_2(n)))
    bk = max(32, BLOCK_K * 2 // a.element_size())
    tiles = triton.cdiv(m, bm) * triton.cdiv(n, bn)
    wanted = PROGRAMS_PER_SM * torch.cuda.get_device_properties(a.device).multi_processor_count
    blocks = triton.cdiv(k, bk)
    share = triton.cdiv(blocks, max(1, min(wanted // tiles, blocks))) * bk
    splits = triton.cdiv(k, share)
    parts = torch.empty((splits, m, n), dtype=torch.float32, device=a.device) if splits > 1 else y
    stages = max(1, min(NUM_STAGES, (200 << 10) // ((bm + bn) * bk * a.element_size())))
    part_kernel[(tiles, splits)](
        a, b, parts, m, n, k, share, *a.stride(), *b.stride(),
        INPUT_PRECISION="tf32x3", BM=bm, BN=bn, BK=bk, num_warps=NUM_WARPS, num_stages=stages,
    )  # fmt: skip
    if splits > 1:
        add_kernel[(triton.cdiv(m * n, 512),)](parts, y, m * n, splits, BLOCK=512, num_warps=4)
    return y
