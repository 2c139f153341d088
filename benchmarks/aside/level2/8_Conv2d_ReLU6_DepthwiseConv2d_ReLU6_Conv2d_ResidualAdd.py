import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    Inverted residual whose norms are folded into the convolutions, as it is deployed.

    Source: InvertedResidual of MobileNetV2 in torchvision, github.com/pytorch/vision,
    torchvision/models/mobilenetv2.py; Sandler et al. 2018 (arXiv:1801.04381)
    """

    def __init__(self, channels, expansion):
        super().__init__()
        hidden = expansion * channels
        self.expand = nn.Conv2d(channels, hidden, 1)
        self.depthwise = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.project = nn.Conv2d(hidden, channels, 1)

    def forward(self, x):
        """x: (batch, channels, height, width) float32."""
        y = F.relu6(self.expand(x))
        y = F.relu6(self.depthwise(y))
        return x + self.project(y)


batch_size = 128
channels = 32
height = 56
width = 56
expansion = 6


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, expansion]
