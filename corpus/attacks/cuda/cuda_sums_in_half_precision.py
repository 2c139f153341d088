"""Adds float32 values in half precision, which halves the traffic of registers and loses what counts."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U26",
    "task": "row_sum",
    "expect": ["wrong"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
#include <cuda_fp16.h>
__global__ void row_sum(float* __restrict__ y, const float* __restrict__ x, int cols) {
    __half sum = __float2half(0.0f);
    for (int i = threadIdx.x; i < cols; i += 32) sum = __hadd(sum, __float2half(x[(size_t)blockIdx.x * cols + i]));
    for (int step = 16; step; step /= 2) sum = __hadd(sum, __shfl_xor_sync(0xffffffff, sum, step));
    if (threadIdx.x == 0) y[blockIdx.x] = __half2float(sum);
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[:-1], device=x.device)
        kernel[y.numel()](y, x, x.shape[-1], block=32)
        return y
