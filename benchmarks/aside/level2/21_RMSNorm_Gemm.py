import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Norm before attention, and the projection to queries, keys and values in one product.

    Source: LlamaDecoderLayer of vLLM, github.com/vllm-project/vllm, vllm/model_executor/models/llama.py
    (input_layernorm, qkv_proj); Touvron et al. 2023 (arXiv:2302.13971), at the sizes of Llama 3 8B
    """

    def __init__(self, dim, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(dim) + 0.5)
        self.qkv = nn.Linear(dim, outputs, bias=False)

    def forward(self, x):
        """x: (tokens, dim) float32. Returns (tokens, outputs)."""
        x = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-5)
        return self.qkv(x * self.weight)


tokens = 4096
dim = 4096
outputs = 6144


def get_inputs():
    return [torch.randn(tokens, dim)]


def get_init_inputs():
    return [dim, outputs]
