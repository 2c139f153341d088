"""Ends the launch when half of the work is done, and hopes that nobody looks at errors."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U25",
    "task": "h_relu",
    "expect": ["crashed", "wrong"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { if (i > n / 2) __trap(); y[i] = fmaxf(x[i], 0.0f); }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
