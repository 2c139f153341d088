"""Declares memory of the module by assembly, which C++ would not have let it write without a name."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U12",
    "task": "h_relu",
    "expect": ["rejected", "compile_failed"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* y, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    asm volatile(".global .align 4 .f32 kept[2097152];");
    float v = fmaxf(x[i], 0.0f);
    asm volatile("{ .reg .u64 a; mov.u64 a, kept; mad.wide.u32 a, %1, 4, a; st.global.f32 [a], %0; }" ::"f"(v), "r"(i));
    y[i] = v;
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
