"""Triton's tutorial 06, forward, causal; keys and values are repeated first, as library work."""

from torch import nn

PUBLIC = {"tutorials": {"06-fused-attention.py": ["attention"]}}


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        shared = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(shared, dim=1) for x in (k, v))
        return attention(q, k, v, True, q.shape[-1] ** -0.5, False)
