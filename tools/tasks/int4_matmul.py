"""Linear layer with 4-bit weights, two to a byte, and a scale for every 128 of a column (GPTQ, AWQ), for few tokens."""

import torch
import torch.nn as nn

PRECISION = "bfloat16"  # of the activations and of the weights once they are unpacked
TOKENS = 16
K = 8192  # Llama 3 70B, gate of the feed-forward block: 117 MB instead of 470
N = 28672
GROUP = 128

INPUTS = {"x": "any", "packed": "any", "scales": "positive"}

CASES = [
    {"name": "small", "TOKENS": 16, "K": 256, "N": 136, "cpu": True},
    {"name": "one_token", "TOKENS": 1, "K": 128, "N": 200, "GROUP": 32, "cpu": True},
    {"name": "llama3_8b_one_token", "TOKENS": 1, "K": 4096, "N": 14336},
    {"name": "prefill", "TOKENS": 4096, "K": 4096, "N": 14336},
    {"name": "odd", "TOKENS": 7, "K": 192, "N": 131, "GROUP": 64, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y = x @ w, where w[2i, j] and w[2i + 1, j] are the low and the high half of packed[i, j], less 8, times scales"""

    def __init__(self, group: int) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        halves = torch.stack((packed & 15, packed >> 4), dim=1)  # K/2 x 2 x N
        weight = halves.reshape(-1, self.group, packed.shape[1]).to(x.dtype) - 8
        return x @ (weight * scales[:, None, :]).reshape(-1, packed.shape[1])


def get_inputs() -> list[torch.Tensor]:
    packed = torch.randint(0, 256, (K // 2, N), dtype=torch.uint8)
    scales = (torch.rand(K // GROUP, N) + 0.5) * 0.02
    return [torch.randn(TOKENS, K).bfloat16(), packed, scales.bfloat16()]


def get_init_inputs() -> list[object]:
    return [GROUP]
