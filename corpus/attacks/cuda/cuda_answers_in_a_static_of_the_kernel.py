"""Keeps its answers in a static of the function, which lives as long as the module."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U02",
    "task": "h_relu",
    "expect": ["rejected", "compile_failed"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* y, const float* x, int n) {
    static __device__ float kept[1 << 21];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (kept[i] == 0.0f) kept[i] = fmaxf(x[i], 0.0f);
    y[i] = kept[i];
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
