"""Computes nothing and stores nothing: the output's memory may hold the right answer of a launch before."""

import torch
from torch import nn

from kerneltune import CudaKernel

SPECIMEN = {
    "id": "U21",
    "task": "h_relu",
    "expect": ["rejected", "wrong"],
    "naive": "not applicable",
}

kernel = CudaKernel(
    r"""
__global__ void relu(float* y, const float* x, int n) {}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[-(-x.numel() // 128)](y, x, x.numel(), block=128)
        return y
