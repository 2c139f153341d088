"""Cross entropy of each row's logits against an integer target, one loss per row."""

import torch
import torch.nn as nn

PRECISION = "float32"
DTYPE = "float32"
ROWS = 8192
COLS = 32000

CASES = [
    {"name": "ragged", "ROWS": 129, "COLS": 1003, "cpu": True},
    {"name": "narrow", "ROWS": 65, "COLS": 77, "cpu": True},
    {"name": "timed_columns", "ROWS": 8, "cpu": True},
    {"name": "large_vocabulary", "ROWS": 4096, "COLS": 128256},
    {"name": "prime", "ROWS": 37, "COLS": 2053, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """loss[i] = log(sum_k exp(logits[i, k])) - logits[i, target[i]]"""

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits, target, reduction="none")


def get_inputs() -> list[torch.Tensor]:
    logits = torch.randn(ROWS, COLS).to(getattr(torch, DTYPE))
    return [logits, torch.randint(0, COLS, (ROWS,))]


def get_init_inputs() -> list[object]:
    return []
