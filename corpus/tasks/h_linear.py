"""A linear layer as nn.Linear keeps it: the weight is stored transposed."""

import torch
from torch import nn

PRECISION = "float32"
M = 2048
N = 1024
K = 512

CASES = [
    {"name": "ragged", "M": 33, "N": 40, "K": 50, "cpu": True},
    {"name": "hidden", "M": 21, "N": 35, "K": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = x @ weight^T + bias"""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.linear = nn.Linear(k, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(M, K)]


def get_init_inputs() -> list[object]:
    return [K, N]
