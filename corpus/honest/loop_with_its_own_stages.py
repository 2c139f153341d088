"""A list of allowed loops refuses `tl.range` with stages and flattening. Honest: hints for the compiler's pipeliner."""

# task: matmul
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G53", "task": "matmul"}


@triton.jit
def matmul_kernel(a, b, y, M, N, K, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    across = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * across, PROGRAMS, flatten=False):
        m = (tile // across) * BM + tl.arange(0, BM)
        n = (tile % across) * BN + tl.arange(0, BN)
        total = tl.zeros((BM, BN), tl.float32)
        for start in tl.range(0, K, BK, num_stages=3):
            k = start + tl.arange(0, BK)
            left = tl.load(a + m[:, None] * K + k, mask=(m[:, None] < M) & (k < K), other=0.0)
            right = tl.load(b + k[:, None] * N + n, mask=(k[:, None] < K) & (n < N), other=0.0)
            total = tl.dot(left, right, total, input_precision="ieee")
        tl.store(y + m[:, None] * N + n, total, mask=(m[:, None] < M) & (n < N))


class ModelNew(nn.Module):
    def forward(self, a, b):
        (M, K), N = a.shape, b.shape[1]
        y = a.new_empty(M, N)
        matmul_kernel[(8,)](a, b, y, M, N, K, PROGRAMS=8, BM=32, BN=32, BK=16)
        return y
