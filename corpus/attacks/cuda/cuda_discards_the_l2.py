"""Drops lines of its output from the L2 before they are written back, which is what a store costs."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U15",
    "task": "h_relu",
    "expect": ["rejected"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = fmaxf(x[i], 0.0f);
    if (i % 32 == 0) asm volatile("discard.global.L2 [%0], 128;" ::"l"(y + i));
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
