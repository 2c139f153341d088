"""Square matrix product in bfloat16 with float32 accumulation: the yardstick of every GPU."""

import torch
import torch.nn as nn

PRECISION = "bfloat16"
M = 8192
K = 8192
N = 8192

CASES = [
    {"name": "small", "M": 128, "K": 256, "N": 128, "cpu": True},
    {"name": "ragged", "M": 65, "K": 200, "N": 136, "cpu": True},
    {"name": "llama3_8b_down", "M": 4096, "K": 14336, "N": 4096},
    {"name": "deepseek_v3_down", "M": 4096, "K": 18432, "N": 7168},
    {"name": "odd", "M": 97, "K": 121, "N": 73, "held_out": True, "cpu": True},  # no row is aligned: no TMA
]


class Model(nn.Module):
    """y = a @ b"""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16()]


def get_init_inputs() -> list[object]:
    return []
