"""Jensen-Shannon divergence of two projections, in chunks."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/fused_linear_jsd.py": ["LigerFusedLinearJSDFunction"]}}
PRECISION = "float32"
T = 1024
H = 512
V = 16000

CASES = [
    {"name": "ragged", "T": 13, "H": 20, "V": 50, "cpu": True},
    {"name": "hidden", "T": 6, "H": 16, "V": 37, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def __init__(self, rows: int, cols: int) -> None:
        super().__init__()
        self.student = nn.Parameter(torch.randn(rows, cols) / cols**0.5)
        self.teacher = nn.Parameter(torch.randn(rows, cols) / cols**0.5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        q, p = (x @ self.student.T).log_softmax(-1), (y @ self.teacher.T).log_softmax(-1)
        m = (0.5 * (p.exp() + q.exp())).log()
        return (0.5 * (p.exp() * (p - m)) + 0.5 * (q.exp() * (q - m))).sum() / x.shape[0]


def get_inputs() -> list[Any]:
    return [torch.randn(T, H), torch.randn(T, H)]


def get_init_inputs() -> list[Any]:
    return [V, H]


class ModelNew(Model):
    def forward(self, x, y):
        return LigerFusedLinearJSDFunction.apply(x, self.student, y, self.teacher, None, 0.5, -100, 1.0)
