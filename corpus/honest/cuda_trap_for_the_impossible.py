"""A check for kernels that can end the launch refuses this: a trap guards what never happens, as an assertion does."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "F-cuda-07",
    "task": "h_relu",
    "expect": ["checked"],
}

relu = CudaKernel(
    r"""
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n, int each) {
    if (n < 0 || each < 1) __trap();
    int from = (blockIdx.x * blockDim.x + threadIdx.x) * each;
    if (from >= n) return;  // no barrier follows
    for (int i = from; i < min(n, from + each); i++) y[i] = fmaxf(x[i], 0.0f);
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        relu[-(-x.numel() // 512)](y, x, x.numel(), 4, block=128)
        return y
