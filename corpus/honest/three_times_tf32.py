"""An opcode rule ("tensor-core instructions in a float32 task") refuses 3xTF32. Honest: the operands are split into
a large and a small part and three products are added, which is as exact as float32."""

# task: matmul
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F04a", "task": "matmul"}


@triton.jit
def matmul_kernel(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        t = start + tl.arange(0, BK)
        p = tl.load(a + i[:, None] * k + t[None, :], mask=(i[:, None] < m) & (t[None, :] < k), other=0.0)
        q = tl.load(b + t[:, None] * n + j[None, :], mask=(t[:, None] < k) & (j[None, :] < n), other=0.0)
        acc = tl.dot(p, q, acc, input_precision="tf32x3")
    tl.store(c + i[:, None] * n + j[None, :], acc, mask=(i[:, None] < m) & (j[None, :] < n))


class ModelNew(nn.Module):
    def forward(self, a, b):
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty((m, n), dtype=a.dtype, device=a.device)
        grid = (triton.cdiv(m, 64), triton.cdiv(n, 64))
        matmul_kernel[grid](a, b, c, m, n, k, BM=64, BN=64, BK=32, num_warps=4, num_stages=3)
        return c
