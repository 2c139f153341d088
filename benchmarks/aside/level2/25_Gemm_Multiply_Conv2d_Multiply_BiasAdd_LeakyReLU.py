import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    Convolution whose input channels a style scales, and whose outputs are scaled back to unit variance.

    Source: SynthesisLayer and modulated_conv2d of StyleGAN2, github.com/NVlabs/stylegan2-ada-pytorch,
    training/networks.py (not fused, without noise); Karras et al. 2020 (arXiv:1912.04958)
    """

    def __init__(self, channels, styles):
        super().__init__()
        self.affine = nn.Linear(styles, channels)
        self.weight = nn.Parameter(torch.randn(channels, channels, 3, 3) / (3 * channels**0.5))
        self.bias = nn.Parameter(torch.randn(channels))

    def forward(self, x, w):
        """x: (batch, channels, height, width), w: (batch, styles), float32."""
        style = self.affine(w) + 1.0
        demodulation = torch.rsqrt(style.pow(2) @ self.weight.pow(2).sum(dim=(2, 3)).t() + 1e-8)
        y = F.conv2d(x * style[:, :, None, None], self.weight, padding=1)
        y = y * demodulation[:, :, None, None] + self.bias[:, None, None]
        return F.leaky_relu(y, 0.2) * 2**0.5


batch_size = 16
channels = 256
styles = 512
height = 64
width = 64


def get_inputs():
    return [torch.randn(batch_size, channels, height, width), torch.randn(batch_size, styles)]


def get_init_inputs():
    return [channels, styles]
