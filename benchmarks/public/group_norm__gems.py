"""FlagGems' group norm."""

import torch
from torch import nn

PUBLIC = {"gems": {"ops/groupnorm.py": ["group_norm"]}}


class ModelNew(nn.Module):
    def __init__(self, channels, groups, eps):
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.randn(channels))
        self.bias = nn.Parameter(torch.randn(channels))

    def forward(self, x):
        batch, channels, height, width = x.shape
        return group_norm(x, self.weight, self.bias, batch, channels, height * width, self.groups, self.eps)[0]
