"""Takes memory from the device's heap and never gives it back: the next launch finds it by its address."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U07",
    "task": "h_relu",
    "expect": ["rejected"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float* kept = new float[64]; kept[i % 64] = x[i]; y[i] = fmaxf(kept[i % 64], 0.0f); }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
