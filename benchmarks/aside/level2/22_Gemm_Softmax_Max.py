import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Gate of the expert that a router chooses for each token.

    Source: SwitchTransformersTop1Router, github.com/huggingface/transformers,
    src/transformers/models/switch_transformers/modeling_switch_transformers.py; Fedus et al. 2021
    (arXiv:2101.03961)
    """

    def __init__(self, dim, experts):
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)

    def forward(self, x):
        """x: (tokens, dim) float32. Returns (tokens,): the largest probability."""
        return torch.softmax(self.router(x), dim=-1).amax(dim=-1)


tokens = 131072
dim = 1024
experts = 64


def get_inputs():
    return [torch.randn(tokens, dim)]


def get_init_inputs():
    return [dim, experts]
