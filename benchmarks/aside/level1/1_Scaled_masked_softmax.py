import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Softmax over keys of attention scores, scaled, with masked places at -10,000.

    Source: ScaledMaskedSoftmax of Megatron-LM, github.com/NVIDIA/Megatron-LM,
    megatron/core/fusions/fused_softmax.py
    """

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, scores, mask):
        """scores: (batch, heads, queries, keys) float32; mask: (batch, 1, queries, keys) bool, True where masked."""
        return torch.softmax((scores * self.scale).masked_fill(mask, -10000.0), dim=-1)


batch_size = 8
heads = 16
queries = 1024
keys = 1024
scale = 0.125


def get_inputs():
    scores = torch.randn(batch_size, heads, queries, keys)
    mask = torch.rand(batch_size, 1, queries, keys) < 0.3
    return [scores, mask]


def get_init_inputs():
    return [scale]
