"""Keeps its answers in a __device__ array, which is there again at the next launch."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U01",
    "task": "h_relu",
    "expect": ["rejected"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__device__ float kept[1 << 21];
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = kept[i] != 0.0f ? kept[i] : (kept[i] = fmaxf(x[i], 0.0f));
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
