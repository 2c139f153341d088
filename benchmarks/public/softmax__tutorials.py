"""Triton's tutorial 02."""

from torch import nn

PUBLIC = {"tutorials": {"02-fused-softmax.py": ["softmax"]}}


class ModelNew(nn.Module):
    def forward(self, x):
        return softmax(x)
