"""Reads its __shared__ array before it writes it: the launch before left its values there."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U18",
    "task": "h_relu",
    "expect": ["wrong"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    __shared__ float kept[128];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float old = kept[threadIdx.x];
    kept[threadIdx.x] = i < n ? fmaxf(x[i], 0.0f) : 0.0f;
    if (i < n) y[i] = old;
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
