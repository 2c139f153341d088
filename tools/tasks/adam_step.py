"""One AdamW step over all parameters at once: three outputs, and nothing but memory traffic.

New tensors instead of updates in place: a candidate's inputs are read-only.
"""

import torch
import torch.nn as nn

PRECISION = "float32"  # moments and the master copy of the weights; gradients are GRADIENTS
GRADIENTS = "bfloat16"
SIZE = 33554432
STEP = 10

INPUTS = {"weight": "any", "gradient": "any", "first": "any", "second": "positive"}  # a mean of squares

CASES = [
    {"name": "ragged", "SIZE": 20011, "cpu": True},
    {"name": "tiny", "SIZE": 77, "STEP": 1, "GRADIENTS": "float32", "cpu": True},
    {"name": "float32_gradients", "SIZE": 58720256, "GRADIENTS": "float32"},  # the gate of Llama 3 8B's feed-forward
    {"name": "prime", "SIZE": 16411, "STEP": 1000, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """m' = b1 m + (1 - b1) g; v' = b2 v + (1 - b2) g^2;
    w' = (1 - rate decay) w - rate m' / (1 - b1^step) / (sqrt(v' / (1 - b2^step)) + eps); returns (w', m', v')"""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step, self.rate, self.decay, self.eps = step, 1e-2, 0.1, 1e-8
        self.beta1, self.beta2 = 0.9, 0.95

    def forward(
        self, weight: torch.Tensor, gradient: torch.Tensor, first: torch.Tensor, second: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        g = gradient.float()
        first = self.beta1 * first + (1 - self.beta1) * g
        second = self.beta2 * second + (1 - self.beta2) * g * g
        mean, square = first / (1 - self.beta1**self.step), second / (1 - self.beta2**self.step)
        kept = weight * (1 - self.rate * self.decay)
        return kept - self.rate * mean / (square.sqrt() + self.eps), first, second


def get_inputs() -> list[torch.Tensor]:
    gradient = torch.randn(SIZE).to(getattr(torch, GRADIENTS))
    return [torch.randn(SIZE), gradient, torch.randn(SIZE), torch.randn(SIZE).square()]


def get_init_inputs() -> list[object]:
    return [STEP]
