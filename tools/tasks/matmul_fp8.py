"""Product of float8 (e4m3) matrices with a scale per row and per column, to bfloat16: fp8 inference and training."""

import torch
import torch.nn as nn

PRECISION = "float8_e4m3fn"  # Hopper adds float8 products in fewer bits than float32 has; bfloat16 would be no option
M = 8192
K = 8192
N = 8192  # Llama 3 70B, attention output

INPUTS = {"a": "any", "b": "any", "scale_a": "positive", "scale_b": "positive"}

CASES = [
    {"name": "small", "M": 128, "K": 256, "N": 128, "cpu": True},
    {"name": "ragged", "M": 48, "K": 208, "N": 80, "cpu": True},
    {"name": "deepseek_v3_up", "M": 4096, "K": 7168, "N": 18432},
    {"name": "odd", "M": 97, "K": 112, "N": 48, "held_out": True, "cpu": True},  # K and N: what the library can do
]


class Model(nn.Module):
    """y[i, j] = scale_a[i] * scale_b[j] * sum_k a[i, k] b[j, k]"""

    def forward(self, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
        if a.is_cuda and a.dtype == torch.float8_e4m3fn:  # the library's own product, for a fair baseline
            return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16)
        return ((a.float() @ b.float().t()) * scale_a * scale_b).bfloat16()


def get_inputs() -> list[torch.Tensor]:
    a, b = torch.randn(M, K).to(torch.float8_e4m3fn), torch.randn(N, K).to(torch.float8_e4m3fn)
    return [a, b, torch.rand(M, 1) + 0.5, torch.rand(1, N) + 0.5]


def get_init_inputs() -> list[object]:
    return []
