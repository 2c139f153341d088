import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Tubelet embedding of a video: a convolution in three dimensions whose stride is its kernel.

    Source: ViViT-B/16x2, Arnab et al. 2021 (arXiv:2103.15691), github.com/google-research/scenic,
    scenic/projects/vivit
    """

    def __init__(self, channels, dim, tubelet_frames, patch):
        super().__init__()
        kernel = (tubelet_frames, patch, patch)
        self.proj = nn.Conv3d(channels, dim, kernel, stride=kernel)

    def forward(self, video):
        """video: (batch, channels, frames, size, size) float32. Returns (batch, dim, frames', rows, columns)."""
        return self.proj(video)


batch_size = 8
channels = 3
frames = 32
size = 224
dim = 768
tubelet_frames = 2
patch = 16


def get_inputs():
    return [torch.randn(batch_size, channels, frames, size, size)]


def get_init_inputs():
    return [channels, dim, tubelet_frames, patch]
