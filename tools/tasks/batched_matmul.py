"""A matrix product per head in bfloat16: DeepSeek-V3 takes its queries into the latent space with 128 of these."""

import torch
import torch.nn as nn

PRECISION = "bfloat16"
BATCH = 128  # heads
M = 2048  # tokens
K = 128
N = 512

CASES = [
    {"name": "small", "BATCH": 3, "M": 64, "K": 96, "N": 80, "cpu": True},
    {"name": "ragged", "BATCH": 2, "M": 33, "K": 72, "N": 56, "cpu": True},
    {"name": "out_of_the_latent", "K": 512, "N": 128},
    {"name": "decode", "M": 64},
    {"name": "odd", "BATCH": 5, "M": 31, "K": 37, "N": 29, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[h] = a[h] @ b[h]"""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, M, K).bfloat16(), torch.randn(BATCH, K, N).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
