"""Manifold hyper-connections: coefficients by a projection, sigmoids and Sinkhorn."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/mhc.py": ["LigerMHCCoeffsFunction"]}}
PRECISION = "tf32_ok"
N = 4096
HC = 4
C = 512

CASES = [
    {"name": "ragged", "N": 13, "HC": 4, "C": 50, "cpu": True},
    {"name": "hidden", "N": 7, "HC": 4, "C": 33, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def __init__(self, streams: int, cols: int) -> None:
        super().__init__()
        wide = streams * (2 + streams)
        self.phi = nn.Parameter(torch.randn(streams * cols, wide) / (streams * cols) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(wide))
        self.alpha = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> Any:
        hc = x.shape[-2]
        flat = x.flatten(-2)
        mix = (flat @ self.phi) * torch.rsqrt((flat * flat).mean(-1, keepdim=True) + 1e-6)
        pre = torch.sigmoid(mix[:, :hc] * self.alpha[0] + self.bias[:hc]) + 1e-4
        post = torch.sigmoid(mix[:, hc : 2 * hc] * self.alpha[1] + self.bias[hc : 2 * hc]) * 2.0
        mat = (mix[:, 2 * hc :] * self.alpha[2] + self.bias[2 * hc :]).view(-1, hc, hc).softmax(-1) + 1e-6
        mat = mat / (mat.sum(-2, keepdim=True) + 1e-6)
        for _ in range(4):
            mat = mat / (mat.sum(-1, keepdim=True) + 1e-6)
            mat = mat / (mat.sum(-2, keepdim=True) + 1e-6)
        return pre, post, mat


def get_inputs() -> list[Any]:
    return [torch.randn(N, HC, C)]


def get_init_inputs() -> list[Any]:
    return [HC, C]


class ModelNew(Model):
    def forward(self, x):
        a = self.alpha
        return LigerMHCCoeffsFunction.apply(x, self.phi, self.bias, a[0], a[1], a[2], True, 5, 1e-6, 1e-4, 1e-6, 2.0)
