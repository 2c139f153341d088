import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    Squeeze-and-excitation: gates for channels from their means over the image.

    Source: SELayer, github.com/moskomule/senet.pytorch, senet/se_module.py; Hu et al. 2018 (arXiv:1709.01507)
    """

    def __init__(self, channels, reduction):
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // reduction, bias=False)
        self.excite = nn.Linear(channels // reduction, channels, bias=False)

    def forward(self, x):
        """x: (batch, channels, height, width) float32."""
        b, c, _, _ = x.shape
        gates = x.mean(dim=(2, 3))
        gates = torch.sigmoid(self.excite(F.relu(self.squeeze(gates))))
        return x * gates.view(b, c, 1, 1)


batch_size = 256
channels = 256
height = 56
width = 56
reduction = 16


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, reduction]
