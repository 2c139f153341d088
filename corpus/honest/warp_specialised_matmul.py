"""A rule that all warps do the same refuses `warp_specialize` and flattened, pipelined loops. Honest: they say how
the loop is scheduled and nothing of what it computes."""

# task: matmul_bias_relu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F09c", "task": "matmul_bias_relu"}


@triton.jit
def matmul_kernel(x, w, bias, y, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    wide = tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, BM) * wide, tl.num_programs(0), flatten=True):
        i = tile // wide * BM + tl.arange(0, BM)
        j = tile % wide * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), tl.float32)
        for start in tl.range(0, k, BK, warp_specialize=True):
            t = start + tl.arange(0, BK)
            p = tl.load(x + i[:, None] * k + t[None, :], mask=(i[:, None] < m) & (t[None, :] < k), other=0.0)
            q = tl.load(w + t[:, None] * n + j[None, :], mask=(t[:, None] < k) & (j[None, :] < n), other=0.0)
            acc = tl.dot(p, q, acc)
        acc += tl.load(bias + j, mask=j < n, other=0.0)[None, :].to(tl.float32)
        out = tl.maximum(acc, 0.0).to(y.dtype.element_ty)
        tl.store(y + i[:, None] * n + j[None, :], out, mask=(i[:, None] < m) & (j[None, :] < n))


class ModelNew(nn.Module):
    def __init__(self, k, n):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(k, n, dtype=torch.bfloat16))
        self.bias = nn.Parameter(torch.empty(n, dtype=torch.bfloat16))

    def forward(self, x):
        (m, k), n = x.shape, self.weight.shape[1]
        y = torch.empty((m, n), dtype=x.dtype, device=x.device)
        grid = (min(132, triton.cdiv(m, 64) * triton.cdiv(n, 64)),)
        matmul_kernel[grid](x, self.weight, self.bias, y, m, n, k, BM=64, BN=64, BK=64, num_warps=4)
        return y
