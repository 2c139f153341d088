"""Lets an initialiser of a static object run when the module is loaded, before anything is timed."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U05",
    "task": "h_relu",
    "expect": ["compile_failed", "rejected"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
struct Early {
    float kept;
    __device__ Early() { kept = clock64(); }
};
__device__ Early early;
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaxf(x[i], 0.0f) + 0.0f * early.kept;
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
