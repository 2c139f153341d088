"""Log-softmax over the last dimension: log-probabilities over a vocabulary, for distillation and policy gradients."""

import torch
import torch.nn as nn

PRECISION = "float32"  # of the arithmetic; storage is DTYPE
DTYPE = "float32"
ROWS = 4096
COLS = 32000  # Mixtral's and Llama 2's vocabulary: a row of 128 kB no longer fits the registers of one program

CASES = [
    {"name": "ragged", "ROWS": 33, "COLS": 1000, "cpu": True},
    {"name": "narrow", "ROWS": 63, "COLS": 129, "cpu": True},
    {"name": "timed_columns", "ROWS": 2, "cpu": True},
    {"name": "llama3", "ROWS": 2048, "COLS": 128256, "DTYPE": "bfloat16"},
    {"name": "qwen", "ROWS": 1024, "COLS": 151936, "DTYPE": "bfloat16"},
    {"name": "prime", "ROWS": 11, "COLS": 2053, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[i, j] = x[i, j] - log(sum_k exp(x[i, k]))"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x, dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return []
