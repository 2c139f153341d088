"""Linear layer and cross entropy in one: the loss of a language model without its logits in memory (hard)."""

import torch
import torch.nn as nn

PRECISION = "float16"  # operands are bfloat16 and exact on tensor cores; 8 bits for the loss would hide dropped terms
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
        self.weight = nn.Parameter((torch.randn(vocabulary, hidden) * hidden**-0.5).bfloat16())

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = nn.functional.linear(x, self.weight).float()
        return nn.functional.cross_entropy(logits, target, reduction="none")


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, HIDDEN).bfloat16(), torch.randint(0, VOCABULARY, (TOKENS,))]


def get_init_inputs() -> list[object]:
    return [HIDDEN, VOCABULARY]
