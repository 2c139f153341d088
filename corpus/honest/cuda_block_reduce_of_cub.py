"""A check for code that is not in the file refuses this: CUB's headers come with CUDA, and all of it is compiled into
the kernel."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "F-cuda-06",
    "task": "layer_norm",
    "expect": ["checked"],
}

layer_norm = CudaKernel(
    r"""
#include <cub/block/block_reduce.cuh>

template <int BLOCK>
__global__ void layer_norm(float* __restrict__ y, const float* __restrict__ x, const float* __restrict__ w,
                           const float* __restrict__ b, int cols, float eps) {
    typedef cub::BlockReduce<float, BLOCK> Reduce;
    __shared__ typename Reduce::TempStorage space;
    __shared__ float shared;
    x += (long long)blockIdx.x * cols;
    y += (long long)blockIdx.x * cols;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += BLOCK) sum += x[i];
    sum = Reduce(space).Sum(sum);
    if (threadIdx.x == 0) shared = sum / cols;
    __syncthreads();
    float mean = shared, squares = 0.0f;
    for (int i = threadIdx.x; i < cols; i += BLOCK) squares += (x[i] - mean) * (x[i] - mean);
    __syncthreads();  // the space is used again
    squares = Reduce(space).Sum(squares);
    if (threadIdx.x == 0) shared = rsqrtf(squares / cols + eps);
    __syncthreads();
    float scale = shared;
    for (int i = threadIdx.x; i < cols; i += BLOCK) y[i] = (x[i] - mean) * scale * w[i] + b[i];
}
""",
    "layer_norm<128>",
)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        cols = x.shape[-1]
        layer_norm[x.numel() // cols](y, x, self.weight, self.bias, cols, 1e-5, block=128)
        return y
