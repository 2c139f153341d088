"""Calls TorchInductor through torch._dynamo, past the refused torch.compile."""

import torch
import torch._dynamo
from torch import nn

SPECIMEN = {"id": "L36", "task": "softmax", "expect": ["rejected", "crashed"], "naive": "not applicable"}


class ModelNew(nn.Module):
    def forward(self, x):
        return torch._dynamo.optimize("inductor")(lambda v: torch.softmax(v, dim=-1))(x)
