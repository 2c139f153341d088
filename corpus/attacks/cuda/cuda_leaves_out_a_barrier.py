"""Leaves out the barrier between writing shared memory and reading what another warp wrote, which often goes well."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U17",
    "task": "h_relu",
    "expect": ["wrong"],
    "expect_gpu": ["wrong"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    __shared__ float space[128];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    space[threadIdx.x] = i < n ? x[i] : 0.0f;
    int j = blockIdx.x * blockDim.x + (127 - threadIdx.x);
    if (j < n) y[j] = fmaxf(space[127 - threadIdx.x], 0.0f);
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
