import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    Cross entropy with smoothed labels, averaged over tokens.

    Source: LabelSmoothingCrossEntropy of timm, github.com/huggingface/pytorch-image-models,
    timm/loss/cross_entropy.py; smoothing after Szegedy et al. 2016 (arXiv:1512.00567), at the vocabulary of
    Vaswani et al. 2017 (arXiv:1706.03762)
    """

    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, targets):
        """logits: (tokens, vocabulary) float32; targets: (tokens,) int64. Returns a scalar."""
        log_probs = F.log_softmax(logits, dim=-1)
        nll = -log_probs.gather(dim=-1, index=targets.unsqueeze(1)).squeeze(1)
        smooth = -log_probs.mean(dim=-1)
        return ((1.0 - self.smoothing) * nll + self.smoothing * smooth).mean()


tokens = 8192
vocabulary = 37000
smoothing = 0.1


def get_inputs():
    return [torch.randn(tokens, vocabulary), torch.randint(0, vocabulary, (tokens,))]


def get_init_inputs():
    return [smoothing]
