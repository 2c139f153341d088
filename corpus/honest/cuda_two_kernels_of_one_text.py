"""A check that every function of a text is launched, or that shared memory has one size, refuses this: one text holds
two functions, with a workspace between their launches that forward allocates."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "F-cuda-09",
    "task": "row_sum",
    "expect": ["checked"],
}

TEXT = r"""
__device__ __forceinline__ float summed(float v, float* space) {
    space[threadIdx.x] = v;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half) space[threadIdx.x] += space[threadIdx.x + half];
        __syncthreads();
    }
    return space[0];
}

__global__ void parts(float* __restrict__ found, const float* __restrict__ x, int cols) {
    extern __shared__ float space[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < cols ? x[(size_t)blockIdx.y * cols + i] : 0.0f;
    v = summed(v, space);
    if (threadIdx.x == 0) found[blockIdx.y * gridDim.x + blockIdx.x] = v;
}

__global__ void joined(float* __restrict__ y, const float* __restrict__ found, int count) {
    extern __shared__ float space[];
    float v = 0.0f;
    for (int i = threadIdx.x; i < count; i += blockDim.x) v += found[blockIdx.x * count + i];
    v = summed(v, space);
    if (threadIdx.x == 0) y[blockIdx.x] = v;
}

__global__ void never_launched(int* counter) { atomicAdd(counter, 1); }
"""
parts, joined = CudaKernel(TEXT, "parts"), CudaKernel(TEXT, "joined")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, cols = x.shape
        count = -(-cols // 128)
        found = torch.empty(rows, count, dtype=x.dtype, device=x.device)
        y = torch.empty(rows, dtype=x.dtype, device=x.device)
        parts[(count, rows)](found, x, cols, block=128, shared_bytes=512)
        joined[rows](y, found, count, block=32, shared_bytes=128)
        return y
