import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Mean over sequences of the outer products of two projections, for each pair of residues.

    Source: OuterProductMean of AlphaFold 2, Jumper et al. 2021, supplementary algorithm 10;
    github.com/aqlaboratory/openfold, openfold/model/outer_product_mean.py
    """

    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        """a, b: (sequences, residues, channels) float32. Returns (residues, residues, channels, channels)."""
        return torch.einsum("sic,sjd->ijcd", a, b) / a.shape[0]


sequences = 512
residues = 256
channels = 32


def get_inputs():
    return [torch.randn(sequences, residues, channels), torch.randn(sequences, residues, channels)]


def get_init_inputs():
    return []
