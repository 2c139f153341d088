"""A check that program ids are used as they are refuses a swizzle. Honest: another order of tiles, for the L2."""

# task: matmul
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G54", "task": "matmul"}


@triton.jit
def matmul_kernel(a, b, y, M, N, K, GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    p = tl.program_id(0)
    pm, pn = tl.swizzle2d(p // across, p % across, down, across, GROUP)
    m, n = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + m[:, None] * K + k, mask=(m[:, None] < M) & (k < K), other=0.0)
        right = tl.load(b + k[:, None] * N + n, mask=(k[:, None] < K) & (n < N), other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(y + m[:, None] * N + n, total, mask=(m[:, None] < M) & (n < N))


class ModelNew(nn.Module):
    def forward(self, a, b):
        (M, K), N = a.shape, b.shape[1]
        y = a.new_empty(M, N)
        grid = (triton.cdiv(M, 16) * triton.cdiv(N, 16),)
        matmul_kernel[grid](a, b, y, M, N, K, GROUP=4, BM=16, BN=16, BK=32)
        return y
