"""Causal attention of a long prompt where four query heads share a key head (Llama 3 8B, prefill), in bfloat16."""

import torch
import torch.nn as nn

PRECISION = "bfloat16"  # of both products' operands; the softmax is in float32
BATCH = 1
HEADS = 32
KV_HEADS = 8
SEQUENCE = 8192
HEAD_DIM = 128

CASES = [
    {"name": "small", "HEADS": 4, "KV_HEADS": 2, "SEQUENCE": 64, "HEAD_DIM": 64, "cpu": True},
    {"name": "ragged", "BATCH": 2, "HEADS": 3, "KV_HEADS": 1, "SEQUENCE": 97, "HEAD_DIM": 32, "cpu": True},
    {"name": "llama3_70b", "BATCH": 2, "HEADS": 64, "SEQUENCE": 4096},
    {"name": "qwen2_7b", "HEADS": 28, "KV_HEADS": 4, "SEQUENCE": 8191},
    {"name": "odd", "HEADS": 6, "KV_HEADS": 2, "SEQUENCE": 51, "HEAD_DIM": 64, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = softmax(mask(q k^T / sqrt(head_dim))) v; row i sees columns 0..i, head h the keys of h * KV_HEADS / HEADS"""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def get_inputs() -> list[torch.Tensor]:
    heads = (HEADS, KV_HEADS, KV_HEADS)
    return [torch.randn(BATCH, count, SEQUENCE, HEAD_DIM).bfloat16() for count in heads]


def get_init_inputs() -> list[object]:
    return []
