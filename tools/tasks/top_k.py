"""The k largest of each row and their places, in order: a router's experts, or candidates for the next token."""

import torch
import torch.nn as nn

PRECISION = "float32"  # values are only compared
DTYPE = "float32"
ROWS = 262144  # tokens
COLS = 256  # DeepSeek-V3's experts, 8 of which are taken
K = 8
MEAN = 0.0

CASES = [
    {"name": "ragged", "ROWS": 129, "COLS": 60, "K": 4, "cpu": True},  # Qwen1.5-MoE
    {"name": "mixtral", "ROWS": 200, "COLS": 8, "K": 2, "cpu": True},
    {"name": "negative", "ROWS": 33, "COLS": 60, "K": 4, "MEAN": -50.0, "cpu": True},  # no maximum starts from zero
    {"name": "bfloat16", "ROWS": 65, "COLS": 128, "DTYPE": "bfloat16", "cpu": True},  # Qwen3-30B-A3B; ties
    {"name": "vocabulary", "ROWS": 1024, "COLS": 128256, "K": 50},
    {"name": "prime", "ROWS": 37, "COLS": 251, "K": 7, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """values and places of the k largest x[i, j], largest first; of equal ones, any"""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = torch.topk(x, self.k, dim=-1)
        return values, places


def get_inputs() -> list[torch.Tensor]:
    return [(torch.randn(ROWS, COLS) + MEAN).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return [K]
