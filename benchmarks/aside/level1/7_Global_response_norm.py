import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Global response normalisation: each channel's L2 norm over the image, over the mean of these norms.

    Source: GRN of ConvNeXt V2, github.com/facebookresearch/ConvNeXt-V2, models/utils.py; Woo et al. 2023
    (arXiv:2301.00808). Its gamma and beta begin at zero, which makes it the identity; here they are drawn.
    """

    def __init__(self, channels):
        super().__init__()
        self.gamma = nn.Parameter(torch.randn(channels))
        self.beta = nn.Parameter(torch.randn(channels))

    def forward(self, x):
        """x: (batch, height, width, channels) float32."""
        norm = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        response = norm / (norm.mean(dim=-1, keepdim=True) + 1e-6)
        return self.gamma * (x * response) + self.beta + x


batch_size = 128
height = 56
width = 56
channels = 384


def get_inputs():
    return [torch.randn(batch_size, height, width, channels)]


def get_init_inputs():
    return [channels]
