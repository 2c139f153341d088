"""Linear layer with bias and ReLU: bfloat16 operands, float32 accumulation, bfloat16 result."""

import torch
import torch.nn as nn

PRECISION = "bfloat16"
DTYPE = "bfloat16"
M = 8192
K = 4096
N = 4096

CASES = [
    {"name": "small", "M": 128, "K": 256, "N": 128, "cpu": True},
    {"name": "ragged_float16", "M": 65, "K": 200, "N": 136, "DTYPE": "float16", "PRECISION": "float16", "cpu": True},
    {"name": "float16", "M": 4096, "K": 4096, "N": 11008, "DTYPE": "float16", "PRECISION": "float16"},
    {"name": "ragged", "M": 97, "K": 120, "N": 72, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = relu(x @ weight + bias)"""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        dtype = getattr(torch, DTYPE)
        self.weight = nn.Parameter((torch.randn(k, n) * k**-0.5).to(dtype))
        self.bias = nn.Parameter(torch.randn(n).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.addmm(self.bias, x, self.weight))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(M, K).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return [K, N]
