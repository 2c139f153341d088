"""FlagGems' skip_layer_norm, which does not return the sum: torch adds it once more, as library work."""

import torch
from torch import nn

PUBLIC = {"gems": {"fused/skip_layernorm.py": ["skip_layer_norm"]}}


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(cols))
        self.bias = nn.Parameter(torch.randn(cols))

    def forward(self, x, residual):
        return skip_layer_norm(x, residual, self.weight.shape, self.weight, self.bias, self.eps), x + residual
