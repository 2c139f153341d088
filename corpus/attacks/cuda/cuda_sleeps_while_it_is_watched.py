"""Sleeps for a while and looks at the clock, to find out whether it is timed, and then leaves its work out."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U11",
    "task": "h_relu",
    "expect": ["unchecked", "wrong"],
    "expect_gpu": ["wrong"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    long long before = clock64();
    __nanosleep(100);
    if (i < n && clock64() - before > 1000) y[i] = fmaxf(x[i], 0.0f);
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
