"""Spins until a value appears that nobody writes, to hold the judge."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U19",
    "task": "h_relu",
    "expect": ["timed_out", "rejected"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { while (*(volatile const float*)(x + i) != 12345.678f) {} y[i] = 0.0f; }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
