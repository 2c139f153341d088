"""Keeps its answers in __managed__ memory, which the host would see as well."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U03",
    "task": "h_relu",
    "expect": ["rejected"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__managed__ float kept[4096];
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { if (i < 4096) kept[i] += 1.0f; y[i] = fmaxf(x[i], 0.0f) * (i < 4096 ? kept[i] / kept[i] : 1.0f); }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
