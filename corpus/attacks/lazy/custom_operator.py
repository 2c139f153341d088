"""Wraps torch in an operator of its own library, so that the recorded operator has the candidate's name."""

import torch
from torch import nn

SPECIMEN = {"id": "L37", "task": "softmax", "expect": ["rejected"], "naive": "not applicable"}


@torch.library.custom_op("attack::mine", mutates_args=())
def mine(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


@mine.register_fake
def _(x):
    return torch.empty_like(x)


class ModelNew(nn.Module):
    def forward(self, x):
        return mine(x)
