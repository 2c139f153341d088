"""Recurses through templates for ever, to hold the compiler."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U24",
    "task": "h_relu",
    "expect": ["compile_failed", "timed_out"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
template <int N> struct Deep { static constexpr int value = Deep<N + 1>::value; };
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaxf(x[i], 0.0f) * Deep<0>::value;
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
