"""Multimodal rotary embedding (Qwen2-VL): sections of a head turn by time, height or width."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/qwen2vl_mrope.py": ["LigerQwen2VLMRopeFunction"]}}
PRECISION = "float32"
INPUTS = {"cos": "own", "sin": "own"}
B = 2
HQ = 28
HK = 4
S = 1024
D = 128

CASES = [
    {"name": "ragged", "B": 2, "HQ": 3, "HK": 3, "S": 5, "D": 16, "cpu": True},
    {"name": "hidden", "B": 1, "HQ": 2, "HK": 2, "S": 7, "D": 32, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        def turned(x: torch.Tensor) -> torch.Tensor:
            a, b = x.chunk(2, dim=-1)
            return torch.cat((-b, a), dim=-1)

        d = q.shape[-1]
        sections = [d // 8, d // 4 - d // 16, d // 8 + d // 16] * 2
        c, s = (
            torch.cat([m[i % 3] for i, m in enumerate(t.split(sections, dim=-1))], dim=-1).unsqueeze(1)
            for t in (cos, sin)
        )
        return q * c + turned(q) * s, k * c + turned(k) * s


def get_inputs() -> list[Any]:
    at = torch.randint(0, S, (3, B, S, 1)).float()
    angle = at / 10000 ** (torch.arange(0, D, 2) / D)
    angle = torch.cat((angle, angle), dim=-1)
    return [torch.randn(B, HQ, S, D), torch.randn(B, HK, S, D), angle.cos(), angle.sin()]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, q, k, cos, sin):
        d = q.shape[-1]
        return LigerQwen2VLMRopeFunction.apply(q, k, cos, sin, [d // 8, d // 4 - d // 16, d // 8 + d // 16])
