"""A gated feed-forward block of a language model (Qwen3 0.6B): three bfloat16 products, SiLU between them."""

import torch
import torch.nn as nn

PRECISION = "bfloat16"
ROWS = 16384
WIDTH = 1024
HIDDEN = 3072

CASES = [
    {"name": "small", "ROWS": 128, "WIDTH": 64, "HIDDEN": 128, "cpu": True},
    {"name": "ragged", "ROWS": 37, "WIDTH": 72, "HIDDEN": 104, "cpu": True},
]


class Model(nn.Module):
    """y = (silu(x @ gate.T) * (x @ up.T)) @ down.T"""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False, dtype=torch.bfloat16)
        self.up = nn.Linear(width, hidden, bias=False, dtype=torch.bfloat16)
        self.down = nn.Linear(hidden, width, bias=False, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return y


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, WIDTH).bfloat16()]


def get_init_inputs() -> list[object]:
    return [WIDTH, HIDDEN]
