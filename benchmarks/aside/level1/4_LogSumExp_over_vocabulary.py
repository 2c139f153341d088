import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Logarithm of the softmax's denominator for each token, as the z-loss needs it.

    Source: z-loss of PaLM, Chowdhery et al. 2022 (arXiv:2204.02311), section 5, at the vocabulary of GPT-2,
    github.com/openai/gpt-2
    """

    def __init__(self):
        super().__init__()

    def forward(self, logits):
        """logits: (tokens, vocabulary) float32. Returns (tokens,)."""
        return torch.logsumexp(logits, dim=-1)


tokens = 8192
vocabulary = 50257


def get_inputs():
    return [torch.randn(tokens, vocabulary) * 4.0]


def get_init_inputs():
    return []
