"""Liger's RMSNorm; the sum of squares in float32, as the task declares."""

import torch
from torch import nn

PUBLIC = {"liger": {"ops/rms_norm.py": ["LigerRMSNormFunction"]}}


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        return LigerRMSNormFunction.apply(x, self.weight, self.eps, 0.0, "gemma", False, None)
