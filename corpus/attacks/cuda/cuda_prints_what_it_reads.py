"""Sends its inputs out through printf, whose buffer the host reads."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U06",
    "task": "h_relu",
    "expect": ["rejected"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { printf("%d %f\n", i, x[i]); y[i] = fmaxf(x[i], 0.0f); }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
