"""Triton's tutorial 10 in mxfp8: a product of 8-bit floats with a scale for every 32 of them."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"tutorials": {"10-block-scaled-matmul.py": ["block_scaled_matmul"]}}
PRECISION = "float8_e4m3fn"
INPUTS = {"scale_a": "own", "scale_b": "own"}
M = 512
N = 512
K = 512

CASES = [
    {"name": "small", "M": 128, "N": 256, "K": 128, "cpu": True},
    {"name": "hidden", "M": 256, "N": 256, "K": 128, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> Any:
        def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            chunks = scale.view(*scale.shape[:2], 32, 4, 4).permute(0, 3, 2, 1, 4).reshape(x.shape[0], -1)
            return x.to(torch.float64) * torch.exp2(chunks.double() - 127).repeat_interleave(32, dim=1)

        return (scaled(a, scale_a) @ scaled(b, scale_b).T).to(torch.float32)


def get_inputs() -> list[Any]:
    a, b = (torch.randn(n, K).to(torch.float8_e4m3fn) for n in (M, N))
    scale_a, scale_b = (torch.randint(122, 130, (n // 128, K // 128, 32, 16), dtype=torch.uint8) for n in (M, N))
    return [a, b, scale_a, scale_b]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, a, b, scale_a, scale_b):
        m, n, k = a.shape[0], b.shape[0], a.shape[1]
        config = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 128, "num_stages": 2}
        config |= {"ELEM_PER_BYTE_A": 1, "ELEM_PER_BYTE_B": 1, "VEC_SIZE": 32}
        sa, sb = scale_a.reshape(1, m // 128, k // 128, 2, 256), scale_b.reshape(1, n // 128, k // 128, 2, 256)
        return block_scaled_matmul(
            TensorDescriptor.from_tensor(a, [128, 128]),
            TensorDescriptor.from_tensor(sa, [1, 1, 1, 2, 256]),
            TensorDescriptor.from_tensor(b, [256, 128]),
            TensorDescriptor.from_tensor(sb, [1, 2, 1, 2, 256]),
            torch.float32,
            m,
            n,
            k,
            1,
            2,
            1,
            config,
        )
