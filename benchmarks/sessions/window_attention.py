"""Causal attention in which a token sees itself and the WINDOW - 1 before it (Gemma 3's local layers), in bfloat16."""

import torch
import torch.nn as nn

PRECISION = "bfloat16"  # of both products' operands; the softmax is in float32
BATCH = 2
HEADS = 16
SEQUENCE = 4096
HEAD_DIM = 128
WINDOW = 1024

CASES = [
    {"name": "small", "BATCH": 1, "HEADS": 2, "SEQUENCE": 192, "HEAD_DIM": 64, "WINDOW": 40, "cpu": True},
    {"name": "ragged", "BATCH": 2, "HEADS": 3, "SEQUENCE": 97, "HEAD_DIM": 32, "WINDOW": 33, "cpu": True},
    {"name": "wide", "HEADS": 2, "SEQUENCE": 77, "HEAD_DIM": 64, "WINDOW": 1024, "cpu": True},
]


class Model(nn.Module):
    """y = softmax(mask(q k^T / sqrt(head_dim))) v; row i sees columns max(0, i - window + 1) to i"""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        i = torch.arange(q.shape[-2], device=q.device)
        distance = i[:, None] - i[None, :]
        mask = (distance >= 0) & (distance < self.window)
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, HEADS, SEQUENCE, HEAD_DIM).bfloat16() for _ in range(3)]


def get_init_inputs() -> list[object]:
    return [WINDOW]
