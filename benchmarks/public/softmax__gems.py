"""FlagGems' softmax over the last dimension."""

from torch import nn

PUBLIC = {"gems": {"ops/softmax.py": ["softmax"]}}


class ModelNew(nn.Module):
    def forward(self, x):
        return softmax(x, -1)
