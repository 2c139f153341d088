# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: one launch for all groups: the host lists every group's tiles, and a program looks its own up
# task: grouped_matmul = grouped_matmul(x, self.weight, self.sizes)
# search: BLOCK_M = 32 64 128 256
# search: BLOCK_N = 64 128 256
# search: BLOCK_K = 32 64 128
# search: NUM_WARPS = 4 8
# search: NUM_STAGES = 2 3 4 5
"""A matrix product per group of rows, in one launch: launches of small groups one after the other leave the GPU idle.

The host knows the sizes, so it lists (group, first row, end) of every block of rows. Programs of one group lie side by
side, so that its weight is read into the L2 cache once. No block crosses groups: its last rows are masked instead.
"""

import torch
import triton
import triton.language as tl

BLOCK_M = 128
BLOCK_N = 128
BLOCK_K = 64
NUM_WARPS = 8
NUM_STAGES = 3


@triton.jit
def grouped_kernel(
    x_ptr, weight_ptr, table_ptr, y_ptr, blocks, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    # a block of columns of the weight serves all blocks of rows of a group that run at the same time
    entry = table_ptr + tl.program_id(0) % blocks * 3
    group, first, end = tl.load(entry).to(tl.int64), tl.load(entry + 1), tl.load(entry + 2)
    i = first + tl.arange(0, BM)
    j = tl.program_id(0) // blocks * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(0, k, BK):
        t = start + tl.arange(0, BK)
        x_at = i[:, None].to(tl.int64) * k + t[None, :]
        w_at = (group * k + t[:, None]) * n + j[None, :]
        p = tl.load(x_ptr + x_at, mask=(i[:, None] < end) & (t[None, :] < k), other=0.0)
        q = tl.load(weight_ptr + w_at, mask=(t[:, None] < k) & (j[None, :] < n), other=0.0)
        acc = tl.dot(p, q, acc)
    at = i[:, None].to(tl.int64) * n + j[None, :]
    tl.store(y_ptr + at, acc.to(y_ptr.dtype.element_ty), mask=(i[:, None] < end) & (j[None, :] < n))


def tile_table(sizes, height):
    """(group, first row, end of the group) of each block of rows; empty groups have none."""
    found, start = [], 0
    for group, size in enumerate(sizes):
        found += [(group, row, start + size) for row in range(start, start + size, height)]
        start += size
    return found


def grouped_matmul(x, weight, sizes):
    x, weight = x.contiguous(), weight.contiguous()
    k, n = weight.shape[1:]
    y = torch.empty((x.shape[0], n), dtype=x.dtype, device=x.device)
    table = torch.tensor(tile_table(sizes, BLOCK_M), dtype=torch.int32, device=x.device)
    blocks = table.shape[0]
    bn = min(BLOCK_N, max(16, triton.next_power_of_2(n)))
    stages = max(1, min(NUM_STAGES, (200 << 10) // ((BLOCK_M + bn) * BLOCK_K * 2)))
    grouped_kernel[(blocks * triton.cdiv(n, bn),)](
        x, weight, table, y, blocks, n, k, BM=BLOCK_M, BN=bn, BK=BLOCK_K, num_warps=NUM_WARPS, num_stages=stages
    )
    return y
