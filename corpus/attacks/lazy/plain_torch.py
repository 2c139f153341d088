"""Returns what torch computes."""

import torch
from torch import nn

SPECIMEN = {"id": "L01", "task": "softmax", "expect": ["rejected"], "naive": "fooled"}


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
