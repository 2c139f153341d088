"""FlagGems' product, tuned over its table for Hopper."""

from torch import nn

PUBLIC = {"gems": {"ops/mm.py": ["mm"]}}


TUNED = {"mm": {}, "mm_self_transpose": {}}


class ModelNew(nn.Module):
    def forward(self, a, b):
        return mm(a, b)
