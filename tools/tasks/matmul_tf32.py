"""Output projection added to the residual stream in float32, where TF32 products are allowed (classical training)."""

import torch
import torch.nn as nn

PRECISION = "tf32_ok"
M = 8192
K = 4096  # Llama 3 8B
N = 4096

CASES = [
    {"name": "small", "M": 128, "K": 256, "N": 128, "cpu": True},
    {"name": "ragged", "M": 65, "K": 200, "N": 133, "cpu": True},
    {"name": "llama3_70b", "M": 2048, "K": 8192, "N": 8192},
    {"name": "odd", "M": 97, "K": 121, "N": 73, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = x @ weight + residual"""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(k, n) * k**-0.5)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return torch.addmm(residual, x, self.weight)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(M, K), torch.randn(M, N)]


def get_init_inputs() -> list[object]:
    return [K, N]
