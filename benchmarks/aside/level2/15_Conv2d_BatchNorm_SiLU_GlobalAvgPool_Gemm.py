import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    Head of EfficientNet-B0: 1 x 1 convolution, norm, activation, mean over the image, classifier.

    Source: EfficientNet of torchvision, github.com/pytorch/vision, torchvision/models/efficientnet.py; Tan and
    Le 2019 (arXiv:1905.11946)
    """

    def __init__(self, channels, features, classes):
        super().__init__()
        self.conv = nn.Conv2d(channels, features, 1, bias=False)
        self.norm = nn.BatchNorm2d(features)
        self.classifier = nn.Linear(features, classes)

    def forward(self, x):
        """x: (batch, channels, height, width) float32. Returns (batch, classes)."""
        x = F.silu(self.norm(self.conv(x)))
        return self.classifier(x.mean(dim=(2, 3)))


batch_size = 1024
channels = 320
height = 7
width = 7
features = 1280
classes = 1000


def get_inputs():
    return [torch.randn(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, features, classes]
