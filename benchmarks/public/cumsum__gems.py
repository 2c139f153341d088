"""FlagGems' cumulative sum."""

from torch import nn

PUBLIC = {"gems": {"ops/cumsum.py": ["cumsum"]}}


class ModelNew(nn.Module):
    def forward(self, x):
        return cumsum(x, -1)
