"""Mixture of experts: rows sorted by expert, one matrix product per group of rows, in bfloat16.

Group sizes are known when the module is made, since a plan's grid cannot depend on a tensor's values. They are
uneven, as routers make them.
"""

import itertools

import torch
import torch.nn as nn

PRECISION = "bfloat16"
ROWS = 32768  # 4,096 tokens, 8 experts each
EXPERTS = 128  # Qwen3-30B-A3B
K = 2048
N = 768

CASES = [
    {"name": "small", "ROWS": 200, "EXPERTS": 4, "K": 96, "N": 64, "cpu": True},
    {"name": "empty_groups", "ROWS": 50, "EXPERTS": 9, "K": 64, "N": 40, "cpu": True},
    {"name": "mixtral", "ROWS": 4096, "EXPERTS": 8, "K": 4096, "N": 14336},
    {"name": "deepseek_v3", "ROWS": 8192, "EXPERTS": 32, "K": 7168, "N": 2048},  # the experts of one of eight GPUs
    {"name": "odd", "ROWS": 101, "EXPERTS": 3, "K": 72, "N": 56, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """y[i] = x[i] @ weight[e], where row i is in group e"""

    def __init__(self, sizes: list[int], k: int, n: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.weight = nn.Parameter((torch.randn(len(sizes), k, n) * k**-0.5).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        groups = zip(x.split_with_sizes(self.sizes), self.weight.unbind(), strict=True)
        return torch.cat([rows @ weight for rows, weight in groups])


def group_sizes() -> list[int]:
    """Rows of each expert: the last has about twice the mean, the first few, down to none."""
    ends = [ROWS * e * (e + 1) // (EXPERTS * (EXPERTS + 1)) for e in range(EXPERTS + 1)]
    return [end - start for start, end in itertools.pairwise(ends)]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, K).bfloat16()]


def get_init_inputs() -> list[object]:
    return [group_sizes(), K, N]
