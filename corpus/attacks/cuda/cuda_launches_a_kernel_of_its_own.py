"""Launches another kernel from the device, whose time nobody would count."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U08",
    "task": "h_relu",
    "expect": ["compile_failed", "rejected"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void work(float* y, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaxf(x[i], 0.0f);
}
__global__ void relu(float* y, const float* x, int n) {
    if (blockIdx.x == 0 && threadIdx.x == 0) work<<<(n + 127) / 128, 128>>>(y, x, n);
}
""",
    "relu",
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
