import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    InfoNCE of queries against one key each and a queue of others.

    Source: MoCo, github.com/facebookresearch/moco, moco/builder.py (forward) and main_moco.py (the loss); He et
    al. 2020 (arXiv:1911.05722)
    """

    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, q, k, queue):
        """q, k: (batch, dim), queue: (dim, entries), float32. Returns a scalar."""
        q = F.normalize(q, dim=1)
        k = F.normalize(k, dim=1)
        positive = (q * k).sum(dim=1, keepdim=True)
        logits = torch.cat([positive, q @ queue], dim=1) / self.temperature
        return F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device))


batch_size = 1024
dim = 128
entries = 65536
temperature = 0.07


def get_inputs():
    queue = F.normalize(torch.randn(dim, entries), dim=0)
    return [torch.randn(batch_size, dim), torch.randn(batch_size, dim), queue]


def get_init_inputs():
    return [temperature]
