"""FlagGems' backward of RMSNorm. Its forward would have kept 1/r: here torch finds it first, as library work."""

import torch
from torch import nn

PUBLIC = {"gems": {"ops/rms_norm.py": ["rms_norm_backward"]}}
TUNED = {"rms_norm_loop": {}}


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(cols))

    def forward(self, gradient, x):
        scale = torch.rsqrt(x.float().square().mean(dim=-1) + self.eps)
        return rms_norm_backward(gradient, x, scale, self.weight.shape, self.weight, self.eps)
