"""A search for literal shapes ("hard-coded to the benchmark") refuses a table from shapes to tile sizes. Honest: the
table has a default, every entry computes the same, and shapes that nobody listed are right."""

# task: matmul
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F21b", "task": "matmul"}

TILES = {(2048, 2048, 2048): (128, 128, 32, 8), (33, 40, 100): (32, 64, 32, 4)}


@triton.jit
def matmul_kernel(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        t = start + tl.arange(0, BK)
        p = tl.load(a + i[:, None] * k + t[None, :], mask=(i[:, None] < m) & (t[None, :] < k), other=0.0)
        q = tl.load(b + t[:, None] * n + j[None, :], mask=(t[:, None] < k) & (j[None, :] < n), other=0.0)
        acc = tl.dot(p, q, acc, input_precision="ieee")
    tl.store(c + i[:, None] * n + j[None, :], acc, mask=(i[:, None] < m) & (j[None, :] < n))


class ModelNew(nn.Module):
    def forward(self, a, b):
        (m, k), n = a.shape, b.shape[1]
        bm, bn, bk, warps = TILES.get((m, n, k), (32, 32, 32, 4))
        c = torch.empty((m, n), dtype=a.dtype, device=a.device)
        grid = (triton.cdiv(m, bm), triton.cdiv(n, bn))
        matmul_kernel[grid](a, b, c, m, n, k, BM=bm, BN=bn, BK=bk, num_warps=warps)
        return c
