"""TorchInductor writes Triton too: its kernel is presented as the candidate's."""

import torch
from torch import nn

SPECIMEN = {"id": "L08", "task": "softmax", "expect": ["rejected"], "naive": "not applicable"}


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.compile(lambda v: torch.softmax(v, dim=-1))(x)
