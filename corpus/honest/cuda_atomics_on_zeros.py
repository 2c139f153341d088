"""A check that answers must not come from atomics refuses this: it zeroes what it adds to on every call, and float sums
of a row in another order are within the tolerance."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "F-cuda-08",
    "task": "row_sum",
    "expect": ["checked"],
}

row_sum = CudaKernel(
    r"""
__global__ void row_sum(float* y, const float* __restrict__ x, int cols) {
    int row = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < cols ? x[(long long)row * cols + i] : 0.0f;
    unsigned mask = 0xffffffff;
    for (int step = 16; step; step /= 2) v += __shfl_down_sync(mask, v, step);
    if (threadIdx.x % 32 == 0) atomicAdd(y + row, v);
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, cols = x.shape
        y = torch.zeros(rows, dtype=x.dtype, device=x.device)
        row_sum[(-(-cols // 64), rows)](y, x, cols, block=64)
        return y
