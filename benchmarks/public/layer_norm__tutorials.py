"""Triton's tutorial 05, forward."""

import torch
from torch import nn

PUBLIC = {"tutorials": {"05-layer-norm.py": ["layer_norm"]}}


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(cols))
        self.bias = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
