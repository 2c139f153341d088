"""Embedding: rows of a table gathered by token; nothing is computed, so every bit must be right."""

import torch
import torch.nn as nn

PRECISION = "bfloat16"  # values are only copied
DTYPE = "bfloat16"  # of the table; tokens carry none
TOKENS = 131072
VOCABULARY = 32000  # Llama 2; tokens are four times as many, so that nearly all of the table is read
COLS = 2048

CASES = [
    {"name": "ragged", "TOKENS": 129, "VOCABULARY": 301, "COLS": 100, "cpu": True},
    {"name": "narrow_float32", "TOKENS": 200, "VOCABULARY": 77, "COLS": 33, "DTYPE": "float32", "cpu": True},
    {"name": "llama3_8b", "TOKENS": 16384, "VOCABULARY": 128256, "COLS": 4096},  # offsets above 2^31 bytes
    {"name": "prime", "TOKENS": 101, "VOCABULARY": 199, "COLS": 131, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[i] = weight[tokens[i]]"""

    def __init__(self, vocabulary: int, cols: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, cols).to(getattr(torch, DTYPE)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(tokens, self.weight)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randint(0, VOCABULARY, (TOKENS,))]


def get_init_inputs() -> list[object]:
    return [VOCABULARY, COLS]
