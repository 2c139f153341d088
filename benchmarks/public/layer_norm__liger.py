"""Liger's LayerNorm."""

import torch
from torch import nn

PUBLIC = {"liger": {"ops/layer_norm.py": ["LigerLayerNormFunction"]}}


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(cols))
        self.bias = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        return LigerLayerNormFunction.apply(x, self.weight, self.bias, self.eps)
