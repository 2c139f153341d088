"""Works in three of four microseconds only: where the same launch is repeated, old answers are there already."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U10",
    "task": "h_relu",
    "expect": ["unchecked"],
    "expect_gpu": ["wrong"],
    "needs_gpu": True,
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (i < n && now / 1000 % 4) y[i] = fmaxf(x[i], 0.0f);
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
