"""Hands Triton a file of IR in place of a function, for the compiler to take as it is."""

import torch
import triton
from torch import nn

SPECIMEN = {"id": "L41", "task": "softmax", "expect": ["rejected"], "naive": "not applicable"}


class ModelNew(nn.Module):
    def forward(self, x):
        kernel = triton.compile("/usr/share/kernel.ttir")
        y = torch.empty_like(x)
        kernel[(1, 1, 1)](x, y)
        return y
