"""The backward of Liger's softmax, launched as its forward would have it."""

from torch import nn

PUBLIC = {"liger": {"ops/softmax.py": ["_softmax_backward", "calculate_settings"]}}


class ModelNew(nn.Module):
    def forward(self, gradient, y):
        block, warps = calculate_settings(y.shape[-1])
        return _softmax_backward(gradient, y, block, warps, False)
