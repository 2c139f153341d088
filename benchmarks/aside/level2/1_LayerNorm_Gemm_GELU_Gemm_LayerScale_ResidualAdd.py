import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    What follows the depthwise convolution in a block of ConvNeXt.

    Source: Block of ConvNeXt, github.com/facebookresearch/ConvNeXt, models/convnext.py; Liu et al. 2022
    (arXiv:2201.03545). Its LayerScale begins at 1e-6, which hides the branch; here it is drawn.
    """

    def __init__(self, dim, expansion):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.expand = nn.Linear(dim, expansion * dim)
        self.project = nn.Linear(expansion * dim, dim)
        self.gamma = nn.Parameter(torch.rand(dim) + 0.5)

    def forward(self, x, shortcut):
        """x, shortcut: (batch, height, width, dim) float32."""
        x = self.project(F.gelu(self.expand(self.norm(x))))
        return shortcut + self.gamma * x


batch_size = 256
height = 14
width = 14
dim = 384
expansion = 4


def get_inputs():
    return [torch.randn(batch_size, height, width, dim), torch.randn(batch_size, height, width, dim)]


def get_init_inputs():
    return [dim, expansion]
