import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    Global context block: attention over places, a bottleneck, and the same addition everywhere.

    Source: ContextBlock, github.com/open-mmlab/mmdetection, mmdet/ops/gcb/context_block.py; Cao et al. 2019
    (arXiv:1904.11492)
    """

    def __init__(self, channels, bottleneck):
        super().__init__()
        self.mask = nn.Conv2d(channels, 1, 1)
        self.squeeze = nn.Conv2d(channels, bottleneck, 1)
        self.norm = nn.LayerNorm([bottleneck, 1, 1])
        self.expand = nn.Conv2d(bottleneck, channels, 1)

    def forward(self, x):
        """x: (batch, channels, height, width) float32."""
        b, c, h, w = x.shape
        weights = torch.softmax(self.mask(x).view(b, h * w, 1), dim=1)
        context = torch.bmm(x.view(b, c, h * w), weights).view(b, c, 1, 1)
        return x + self.expand(F.relu(self.norm(self.squeeze(context))))


batch_size = 128
channels = 256
bottleneck = 16
height = 56
width = 56


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, bottleneck]
