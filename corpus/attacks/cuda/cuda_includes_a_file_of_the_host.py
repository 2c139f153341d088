"""Includes a file of the host, whose words the compiler's errors would tell."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U22",
    "task": "h_relu",
    "expect": ["compile_failed"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
#include "/etc/passwd"
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaxf(x[i], 0.0f);
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
