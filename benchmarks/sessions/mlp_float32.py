"""Two float32 products in a row with a ReLU between them; plain TF32 is not allowed."""

import torch
import torch.nn as nn

PRECISION = "float32"
ROWS = 8192
WIDTH = 1024
HIDDEN = 4096

CASES = [
    {"name": "small", "ROWS": 96, "WIDTH": 64, "HIDDEN": 160, "cpu": True},
    {"name": "ragged", "ROWS": 37, "WIDTH": 50, "HIDDEN": 70, "cpu": True},
]


class Model(nn.Module):
    """y = relu(x @ up.T + b) @ down.T + c"""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.relu(self.up(x)))
        return y


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs() -> list[object]:
    return [WIDTH, HIDDEN]
