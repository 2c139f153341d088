"""FlagGems' cross entropy."""

from torch import nn

PUBLIC = {"gems": {"fused/cross_entropy_loss.py": ["cross_entropy_loss"]}}
TUNED = {"cross_entropy_loss": {}}


class ModelNew(nn.Module):
    def forward(self, logits, target):
        return cross_entropy_loss(logits, target, reduction="none")
