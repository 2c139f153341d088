"""Linear layer and cross entropy in one: the loss of a language model without its logits in memory (hard)."""

import torch
import torch.nn as nn

PRECISION = "bfloat16"  # of the product's operands; the softmax is in float32, and so is the loss
TOKENS = 2048
HIDDEN = 4096  # Llama 3 8B: the logits would take 525 MB
VOCABULARY = 128256

CASES = [
    {"name": "small", "TOKENS": 64, "HIDDEN": 128, "VOCABULARY": 500, "cpu": True},
    {"name": "narrow", "TOKENS": 65, "HIDDEN": 72, "VOCABULARY": 97, "cpu": True},
    {"name": "mixtral", "TOKENS": 4096, "VOCABULARY": 32000},
    {"name": "qwen2_7b", "HIDDEN": 3584, "VOCABULARY": 152064},
    {"name": "prime", "TOKENS": 67, "HIDDEN": 136, "VOCABULARY": 251, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    """loss[i] = log(sum_k exp(logits[i, k])) - logits[i, target[i]], where logits = x @ weight^T"""

    def __init__(self, hidden: int, vocabulary: int) -> None:
        super().__init__()
        spread = 4 * hidden**-0.5  # logits of a trained model: far from uniform
        self.weight = nn.Parameter((torch.randn(vocabulary, hidden) * spread).bfloat16())

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = nn.functional.linear(x, self.weight).float()
        return nn.functional.cross_entropy(logits, target, reduction="none")


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, HIDDEN).bfloat16(), torch.randint(0, VOCABULARY, (TOKENS,))]


def get_init_inputs() -> list[object]:
    return [HIDDEN, VOCABULARY]
