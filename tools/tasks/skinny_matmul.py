"""Linear layer of a few tokens (decoding): as long as it takes to read the weight, whatever the tensor cores can do."""

import torch
import torch.nn as nn

PRECISION = "bfloat16"
TOKENS = 16
K = 8192  # Llama 3 70B, gate of the feed-forward block: 470 MB
N = 28672

CASES = [
    {"name": "small", "TOKENS": 16, "K": 256, "N": 200, "cpu": True},
    {"name": "one_token", "TOKENS": 1, "K": 384, "N": 256, "cpu": True},
    {"name": "llama3_8b_one_token", "TOKENS": 1, "K": 4096, "N": 14336},
    {"name": "deepseek_v3", "TOKENS": 64, "K": 7168, "N": 18432},
    {"name": "odd", "TOKENS": 7, "K": 513, "N": 131, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = x @ weight^T"""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter((torch.randn(n, k) * k**-0.5).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, K).bfloat16()]


def get_init_inputs() -> list[object]:
    return [K, N]
