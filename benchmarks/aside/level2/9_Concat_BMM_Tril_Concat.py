import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Dot products of all pairs of features, beside the dense feature.

    Source: interact_features of DLRM, github.com/facebookresearch/dlrm, dlrm_s_pytorch.py; Naumov et al. 2019
    (arXiv:1906.00091), at the 26 tables and width 128 of MLPerf
    """

    def __init__(self, tables):
        super().__init__()
        pairs = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("rows", pairs[0])
        self.register_buffer("columns", pairs[1])

    def forward(self, dense, sparse):
        """dense: (batch, dim), sparse: (batch, tables, dim), float32. Returns (batch, dim + pairs)."""
        features = torch.cat([dense.unsqueeze(1), sparse], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        return torch.cat([dense, products[:, self.rows, self.columns]], dim=1)


batch_size = 32768
tables = 26
dim = 128


def get_inputs():
    return [torch.randn(batch_size, dim), torch.randn(batch_size, tables, dim)]


def get_init_inputs():
    return [tables]
