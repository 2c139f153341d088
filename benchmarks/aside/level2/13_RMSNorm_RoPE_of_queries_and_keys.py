import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Queries and keys normalised over each head, then rotated by their positions.

    Source: Qwen3Attention, github.com/huggingface/transformers,
    src/transformers/models/qwen3/modeling_qwen3.py; rotation after Su et al. 2021 (arXiv:2104.09864)
    """

    def __init__(self, length, head_dim, base):
        super().__init__()
        self.q_weight = nn.Parameter(torch.rand(head_dim) + 0.5)
        self.k_weight = nn.Parameter(torch.rand(head_dim) + 0.5)
        rates = base ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.arange(length).float()[:, None] * rates[None, :]
        angles = torch.cat([angles, angles], dim=-1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def _rotated(self, x, weight):
        x = weight * (x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6))
        x = x.transpose(1, 2)
        a, b = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat([-b, a], dim=-1) * self.sin

    def forward(self, q, k):
        """q, k: (batch, length, heads or kv_heads, head_dim) float32. Returns them, heads before length."""
        return self._rotated(q, self.q_weight), self._rotated(k, self.k_weight)


batch_size = 4
length = 4096
heads = 32
kv_heads = 8
head_dim = 128
base = 1000000.0


def get_inputs():
    return [torch.randn(batch_size, length, heads, head_dim), torch.randn(batch_size, length, kv_heads, head_dim)]


def get_init_inputs():
    return [length, head_dim, base]
