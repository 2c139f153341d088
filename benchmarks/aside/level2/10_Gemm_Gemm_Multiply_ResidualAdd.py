import torch
import torch.nn as nn


class Model(nn.Module):
    """
    A cross layer of low rank: x0 * (U V x + b) + x.

    Source: LowRankCrossNet of TorchRec, github.com/pytorch/torchrec, torchrec/modules/crossnet.py; DCN V2, Wang
    et al. 2021 (arXiv:2008.13535), at the width and rank of MLPerf's DLRM-DCNv2
    """

    def __init__(self, dim, rank):
        super().__init__()
        self.v = nn.Linear(dim, rank, bias=False)
        self.u = nn.Linear(rank, dim)

    def forward(self, x0, x):
        """x0, x: (batch, dim) float32."""
        return x0 * self.u(self.v(x)) + x


batch_size = 16384
dim = 3456
rank = 512


def get_inputs():
    return [torch.randn(batch_size, dim), torch.randn(batch_size, dim)]


def get_init_inputs():
    return [dim, rank]
