"""A check that constant memory is memory that outlives a launch refuses this: it has its values in the text, and nobody
can write it."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "F-cuda-04",
    "task": "gelu",
    "expect": ["checked"],
}

# erf by Abramowitz and Stegun 7.1.26 is not exact enough: erff is, and the table only scales its argument and sum.
gelu = CudaKernel(
    r"""
#include <cmath>
__constant__ float factors[3] = {0.70710678118654752440f, 0.5f, 1.0f};

__global__ void gelu(float* __restrict__ y, const float* __restrict__ x, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        float v = x[i];
        y[i] = v * factors[1] * (factors[2] + erff(v * factors[0]));
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        gelu[min(4096, -(-x.numel() // 256))](y, x, x.numel(), block=256)
        return y
