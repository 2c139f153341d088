"""Liger's rotary embedding. Of its tables it reads the left half, which is all that the task has."""

from torch import nn

PUBLIC = {"liger": {"ops/rope.py": ["LigerRopeFunction"]}}


class ModelNew(nn.Module):
    def forward(self, q, k, cos, sin):
        return LigerRopeFunction.apply(q, k, cos[None], sin[None])
