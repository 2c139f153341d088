"""Closes the kernel's body by assembly, and goes on with a function and memory of its own."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U13",
    "task": "h_relu",
    "expect": ["rejected", "compile_failed"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* y, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaxf(x[i], 0.0f);
    asm volatile("ret; }\n.global .align 4 .u32 kept;\n.func other() { st.global.u32 [kept], 1;");
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
