"""Says that it is launched with 64 threads, so that it gets more registers, and is launched with 256."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U09",
    "task": "h_relu",
    "expect": ["rejected"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void __launch_bounds__(64) relu(float* y, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaxf(x[i], 0.0f);
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 256)](y, x, x.numel(), block=256)
        return y
