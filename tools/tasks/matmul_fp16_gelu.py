"""Linear layer with bias and GELU (tanh form) in float16: the first half of a ViT's feed-forward block."""

import torch
import torch.nn as nn

PRECISION = "float16"  # operands and result; sums are float32
M = 16448  # 64 images of 257 tokens: not a multiple of any tile
K = 1280  # ViT-H
N = 5120

CASES = [
    {"name": "small", "M": 128, "K": 256, "N": 128, "cpu": True},
    {"name": "ragged", "M": 65, "K": 200, "N": 136, "cpu": True},
    {"name": "vit_l", "M": 25216, "K": 1024, "N": 4096},  # 128 images of 197 tokens
    {"name": "odd", "M": 97, "K": 120, "N": 72, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = gelu_tanh(x @ weight^T + bias)"""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter((torch.randn(n, k) * k**-0.5).half())
        self.bias = nn.Parameter(torch.randn(n).half())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(nn.functional.linear(x, self.weight, self.bias), approximate="tanh")


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(M, K).half()]


def get_init_inputs() -> list[object]:
    return [K, N]
