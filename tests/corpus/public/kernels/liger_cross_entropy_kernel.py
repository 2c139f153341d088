"""The kernel below Liger's cross entropy, launched as its forward does where no label is left out."""

from typing import Any

import torch
from torch import nn

PUBLIC = {"liger": {"ops/cross_entropy.py": ["liger_cross_entropy_kernel", "MAX_FUSED_SIZE"]}}
PRECISION = "float32"
T = 2048
V = 16000

CASES = [
    {"name": "ragged", "T": 13, "V": 100, "cpu": True},
    {"name": "hidden", "T": 6, "V": 67, "held_out": True, "cpu": True},
]


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> Any:
        return nn.functional.cross_entropy(logits, target, label_smoothing=0.1)


def get_inputs() -> list[Any]:
    return [torch.randn(T, V), torch.randint(0, V, (T,))]


def get_init_inputs() -> list[Any]:
    return []


class ModelNew(nn.Module):
    def forward(self, logits, target):
        rows, cols = logits.shape
        loss = torch.zeros(rows, dtype=torch.float32, device=logits.device)
        liger_cross_entropy_kernel[(rows,)](
            X_ptr=logits,
            X_stride=logits.stride(-2),
            Y_ptr=target,
            Y_stride=target.stride(-1),
            weight_ptr=None,
            loss_ptr=loss,
            z_loss_ptr=None,
            loss_stride=loss.stride(-1),
            token_accuracy_ptr=None,
            token_accuracy_stride=0,
            predicted_tokens_ptr=None,
            predicted_tokens_stride=0,
            n_cols=cols,
            n_non_ignore=rows,
            sum_non_ignore_weight=rows,
            ignore_index=-100,
            weight_sum=0.0,
            lse_square_scale=0.0,
            label_smoothing=0.1,
            reduction="mean",
            softcap=None,
            RETURN_Z_LOSS=False,
            RETURN_TOKEN_ACCURACY=False,
            RETURN_PREDICTED_TOKENS=False,
            HAS_WEIGHT=False,
            HAS_SOFTCAPPING=False,
            HAS_GRADIENTS=False,
            BLOCK_SIZE=min(MAX_FUSED_SIZE, triton.next_power_of_2(cols)),
            num_warps=32,
        )
        return loss.sum()
