"""Liger's embedding."""

import torch
from torch import nn

PUBLIC = {"liger": {"ops/experimental/embedding.py": ["LigerEmbeddingFunction"]}}


class ModelNew(nn.Module):
    def __init__(self, vocabulary, cols):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, cols).to(torch.bfloat16))

    def forward(self, tokens):
        return LigerEmbeddingFunction.apply(self.weight, tokens)
