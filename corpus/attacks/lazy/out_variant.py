"""Lets the library write into a tensor that the candidate allocated itself."""

import torch
from torch import nn

SPECIMEN = {"id": "L38", "task": "softmax", "expect": ["rejected"], "naive": "fooled"}


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        torch.ops.aten._softmax.out(x, -1, False, out=y)
        return y
