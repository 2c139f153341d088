import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    Focal loss of the classification head of RetinaNet, averaged.

    Source: sigmoid_focal_loss of torchvision, github.com/pytorch/vision, torchvision/ops/focal_loss.py; Lin et
    al. 2017 (arXiv:1708.02002)
    """

    def __init__(self, alpha, gamma):
        super().__init__()
        self.alpha = alpha
        self.gamma = gamma

    def forward(self, logits, targets):
        """logits, targets: (batch, anchors, classes) float32, the targets 0 or 1. Returns a scalar."""
        p = torch.sigmoid(logits)
        ce = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        p_t = p * targets + (1 - p) * (1 - targets)
        alpha_t = self.alpha * targets + (1 - self.alpha) * (1 - targets)
        return (alpha_t * ce * (1 - p_t) ** self.gamma).mean()


batch_size = 8
anchors = 120087
classes = 91
alpha = 0.25
gamma = 2.0


def get_inputs():
    logits = torch.randn(batch_size, anchors, classes)
    targets = (torch.rand(batch_size, anchors, classes) < 0.05).float()
    return [logits, targets]


def get_init_inputs():
    return [alpha, gamma]
