"""Group relative policy optimisation: loss per token against old and reference policies."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/grpo_loss.py": ["GrpoLossFunction"]}}
PRECISION = "float32"
INPUTS = {"old": "own", "ref": "own"}
B = 8
T = 128
V = 16000

CASES = [
    {"name": "ragged", "B": 2, "T": 5, "V": 100, "cpu": True},
    {"name": "hidden", "B": 3, "T": 4, "V": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(
        self, logits: torch.Tensor, old: torch.Tensor, ref: torch.Tensor, token: torch.Tensor, advantage: torch.Tensor
    ) -> Any:
        logp = (logits[:, :-1] / 0.9).log_softmax(-1).gather(-1, token.unsqueeze(-1)).squeeze(-1)
        ratio = (logp - old).exp()
        a = advantage.unsqueeze(1)
        loss = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a)
        kl = (ref - logp).exp() - (ref - logp) - 1
        return loss + 0.04 * kl, kl


def get_inputs() -> list[Any]:
    old = -torch.rand(B, T) - torch.log(torch.tensor(float(V)))
    return [torch.randn(B, T + 1, V), old, old + 0.1 * torch.randn(B, T), torch.randint(0, V, (B, T)), torch.randn(B)]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, logits, old, ref, token, advantage):
        return GrpoLossFunction.apply(
            logits, old, ref, token, advantage, None, 0.9, 0.04, 0.2, 0.2, False, "grpo", None, False
        )[:2]
