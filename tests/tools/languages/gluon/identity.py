"""max(x, 0), of shapes that boxes of 32 x 32 do not fill."""

import torch
from torch import nn

PRECISION = "float32"
ROWS = 96
COLS = 128

CASES = [{"name": "ragged", "ROWS": 40, "COLS": 52, "cpu": True}]


class Model(nn.Module):
    """y = max(x, 0)"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[object]:
    return []
