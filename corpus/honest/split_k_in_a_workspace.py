"""A limit of one launch refuses partial products in a workspace and a kernel that adds them. Honest: no atomics, so
that the order of additions is always the same."""

# task: matmul
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G21", "task": "matmul"}


@triton.jit
def product_kernel(a, b, parts, M, N, K, SPLIT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    part = tl.program_id(2)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(part * BK, K, SPLIT * BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + m[:, None] * K + k, mask=(m[:, None] < M) & (k < K), other=0.0)
        right = tl.load(b + k[:, None] * N + n, mask=(k[:, None] < K) & (n < N), other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    at = part.to(tl.int64) * M * N + m[:, None] * N + n
    tl.store(parts + at, total, mask=(m[:, None] < M) & (n < N))


@triton.jit
def add_kernel(parts, y, n, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(SPLIT):
        total += tl.load(parts + part * n + i, mask=i < n, other=0.0)
    tl.store(y + i, total, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, a, b):
        (M, K), N = a.shape, b.shape[1]
        parts, y = a.new_empty(4, M, N), a.new_empty(M, N)
        grid = (triton.cdiv(M, 32), triton.cdiv(N, 32), 4)
        product_kernel[grid](a, b, parts, M, N, K, SPLIT=4, BM=32, BN=32, BK=16)
        add_kernel[(triton.cdiv(y.numel(), 1024),)](parts, y, y.numel(), SPLIT=4, BLOCK=1024)
        return y
