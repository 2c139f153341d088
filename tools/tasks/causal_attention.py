"""Causal multi-head attention, forward: float16 operands, float32 softmax and accumulation."""

import torch
import torch.nn as nn

PRECISION = "float16"
DTYPE = "float16"
BATCH = 4
HEADS = 16
SEQUENCE = 4096
HEAD_DIM = 64

CASES = [
    {"name": "ragged", "BATCH": 1, "HEADS": 2, "SEQUENCE": 129, "cpu": True},
    {"name": "small", "BATCH": 2, "HEADS": 2, "SEQUENCE": 64, "HEAD_DIM": 32, "cpu": True},
    {"name": "bfloat16", "HEADS": 32, "HEAD_DIM": 128, "DTYPE": "bfloat16", "PRECISION": "bfloat16"},
    {"name": "odd", "BATCH": 1, "HEADS": 3, "SEQUENCE": 100, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = softmax(mask(q k^T / sqrt(head_dim))) v, where row i sees columns 0..i"""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def get_inputs() -> list[torch.Tensor]:
    shape = (BATCH, HEADS, SEQUENCE, HEAD_DIM)
    return [torch.randn(shape).to(getattr(torch, DTYPE)) for _ in range(3)]


def get_init_inputs() -> list[object]:
    return []
