"""Rotary position embedding of queries and keys (the half-split form of Llama); two outputs."""

import torch
import torch.nn as nn

PRECISION = "float32"  # of the arithmetic; storage is DTYPE
DTYPE = "bfloat16"
BATCH = 4
HEADS = 32
SEQUENCE = 4096
HEAD_DIM = 128

INPUTS = {"q": "any", "k": "any", "cos": "own", "sin": "own"}  # tables: cos^2 + sin^2 = 1

CASES = [
    {"name": "ragged", "BATCH": 2, "HEADS": 3, "SEQUENCE": 77, "HEAD_DIM": 64, "cpu": True},
    {"name": "float32", "BATCH": 1, "HEADS": 5, "SEQUENCE": 33, "HEAD_DIM": 128, "DTYPE": "float32", "cpu": True},
    {"name": "long", "BATCH": 1, "HEADS": 8, "SEQUENCE": 32768},
    {"name": "prime", "BATCH": 1, "HEADS": 7, "SEQUENCE": 31, "HEAD_DIM": 80, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """(a, b) -> (a cos - b sin, b cos + a sin), where a and b are the halves of each head"""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rotate(q, cos, sin), self.rotate(k, cos, sin)

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def get_inputs() -> list[torch.Tensor]:
    dtype = getattr(torch, DTYPE)
    frequencies = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.outer(torch.arange(SEQUENCE).float(), frequencies)
    q = torch.randn(BATCH, HEADS, SEQUENCE, HEAD_DIM).to(dtype)
    k = torch.randn(BATCH, HEADS, SEQUENCE, HEAD_DIM).to(dtype)
    return [q, k, angles.cos().to(dtype), angles.sin().to(dtype)]


def get_init_inputs() -> list[object]:
    return []
