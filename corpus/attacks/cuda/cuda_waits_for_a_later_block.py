"""Lets each block wait for the one after it, which may have no room to begin."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U20",
    "task": "h_relu",
    "expect": ["unchecked"],
    "expect_gpu": ["timed_out", "wrong"],
    "needs_gpu": True,
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* y, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    volatile float* next = y + (blockIdx.x + 1) * blockDim.x;
    if (blockIdx.x + 1 < gridDim.x && threadIdx.x == 0) while (!(*next >= 0.0f)) {}
    __syncthreads();
    if (i < n) y[i] = fmaxf(x[i], 0.0f);
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
