"""Brings the next tensor's lines into the L2, which another launch is timed without."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U14",
    "task": "h_relu",
    "expect": ["rejected"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(x + n + i));
    y[i] = fmaxf(x[i], 0.0f);
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
