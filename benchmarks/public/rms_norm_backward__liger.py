"""The backward of Liger's RMSNorm. Its forward would have kept 1/r: here torch finds it first, as library work."""

import torch
from torch import nn

PUBLIC = {"liger": {"ops/rms_norm.py": ["rms_norm_backward", "calculate_settings", "_CASTING_MODE_GEMMA"]}}


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(cols))

    def forward(self, gradient, x):
        scale = torch.rsqrt(x.float().square().mean(dim=-1) + self.eps)
        block, warps = calculate_settings(x.shape[-1])
        mode = _CASTING_MODE_GEMMA.value
        return rms_norm_backward(gradient, x, self.weight, scale, 0.0, mode, block, warps, False, None)
