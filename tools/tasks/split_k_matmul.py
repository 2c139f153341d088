"""Gradient of a narrow weight: a long sum over tokens and few tiles of output, so the sum itself has to be shared."""

import torch
import torch.nn as nn

PRECISION = "bfloat16"  # operands and result; sums are float32
TOKENS = 32768
M = 7168  # DeepSeek-V3's router: 112 tiles of 128 x 128 for 132 multiprocessors
N = 256

CASES = [
    {"name": "small", "TOKENS": 512, "M": 64, "N": 32, "cpu": True},
    {"name": "ragged", "TOKENS": 501, "M": 40, "N": 24, "cpu": True},
    {"name": "mixtral_router", "TOKENS": 65536, "M": 4096, "N": 8},
    {"name": "lora_llama3_8b", "TOKENS": 32768, "M": 4096, "N": 16},
    {"name": "odd", "TOKENS": 509, "M": 37, "N": 29, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = x^T @ gradient"""

    def forward(self, x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        return x.t() @ gradient


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, M).bfloat16(), torch.randn(TOKENS, N).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
