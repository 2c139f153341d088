"""FlagGems' product of groups of rows, which finds them by where they end."""

import itertools

import torch
from torch import nn

PUBLIC = {"gems": {"ops/group_gemm.py": ["group_mm"]}}


class ModelNew(nn.Module):
    def __init__(self, sizes, k, n):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(len(sizes), k, n).bfloat16())
        ends = torch.tensor(list(itertools.accumulate(sizes)), dtype=torch.int32)
        self.register_buffer("ends", ends, persistent=False)

    def forward(self, x):
        return group_mm(x, self.weight, self.ends)
