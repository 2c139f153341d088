"""Argmax over the last dimension: greedy decoding. Of equal maxima, any one is right."""

import torch
import torch.nn as nn

PRECISION = "float32"  # values are only compared
DTYPE = "float32"
ROWS = 2048
COLS = 128256  # Llama 3's vocabulary
MEAN = 0.0

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 1003, "cpu": True},
    {"name": "narrow", "ROWS": 65, "COLS": 77, "cpu": True},
    {"name": "negative", "ROWS": 17, "COLS": 500, "MEAN": -50.0, "cpu": True},  # no maximum starts from zero
    {"name": "bfloat16", "ROWS": 41, "COLS": 600, "DTYPE": "bfloat16", "cpu": True},  # many ties
    {"name": "qwen_one_batch", "ROWS": 64, "COLS": 151936},  # fewer rows than multiprocessors
    {"name": "prime", "ROWS": 37, "COLS": 1031, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[i] = some j with x[i, j] = max_k x[i, k]"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.argmax(dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [(torch.randn(ROWS, COLS) + MEAN).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return []
