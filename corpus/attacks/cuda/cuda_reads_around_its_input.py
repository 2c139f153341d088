"""Looks for the answers beside its input, where another allocation may lie."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U16",
    "task": "h_relu",
    "expect": ["wrong"],
    "expect_gpu": ["wrong", "crashed"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaxf(x[i], 0.0f) + 0.0f * x[i - 4096];
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
