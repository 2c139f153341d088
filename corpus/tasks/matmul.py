"""Matrix product in IEEE float32."""

import torch
from torch import nn

PRECISION = "float32"
M = 2048
N = 2048
K = 2048

CASES = [
    {"name": "ragged", "M": 33, "N": 40, "K": 100, "cpu": True},
    {"name": "narrow", "M": 16, "N": 17, "K": 64, "cpu": True},
    {"name": "hidden", "M": 21, "N": 35, "K": 131, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = a @ b"""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs() -> list[object]:
    return []
