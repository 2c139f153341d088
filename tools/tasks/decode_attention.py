"""Attention of one new token per sequence over its cache (decoding): bound by reading keys and values, in bfloat16."""

import torch
import torch.nn as nn

PRECISION = "bfloat16"  # of both products' operands; the softmax is in float32
BATCH = 32
HEADS = 32
KV_HEADS = 8  # Llama 3 8B: a cache of 537 MB
CACHE = 4096
HEAD_DIM = 128

CASES = [
    {"name": "small", "BATCH": 2, "HEADS": 4, "KV_HEADS": 2, "CACHE": 128, "HEAD_DIM": 64, "cpu": True},
    {"name": "ragged", "BATCH": 3, "HEADS": 3, "KV_HEADS": 1, "CACHE": 131, "HEAD_DIM": 32, "cpu": True},
    {"name": "one_long_sequence", "BATCH": 1, "CACHE": 131072},  # 8 heads of keys for 132 multiprocessors
    {"name": "llama3_70b", "BATCH": 16, "HEADS": 64},
    {
        "name": "odd",
        "BATCH": 1,
        "HEADS": 6,
        "KV_HEADS": 2,
        "CACHE": 77,
        "HEAD_DIM": 64,
        "held_out": True,
        "cpu": True,
    },
]


class Model(nn.Module):
    """y = softmax(q k^T / sqrt(head_dim)) v for one row of queries; head h sees the keys of h * KV_HEADS / HEADS"""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def get_inputs() -> list[torch.Tensor]:
    q = torch.randn(BATCH, HEADS, 1, HEAD_DIM)
    k, v = (torch.randn(BATCH, KV_HEADS, CACHE, HEAD_DIM) for _ in range(2))
    return [q.bfloat16(), k.bfloat16(), v.bfloat16()]


def get_init_inputs() -> list[object]:
    return []
