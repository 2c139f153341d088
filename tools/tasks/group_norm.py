"""Group normalisation of images, with a weight and a bias per channel (diffusion U-Nets and autoencoders)."""

import torch
import torch.nn as nn

PRECISION = "float32"  # of the arithmetic; storage is DTYPE
DTYPE = "float32"
BATCH = 32
CHANNELS = 320  # Stable Diffusion's first level: groups of 10 channels, so that a group is 40,960 elements
HEIGHT = 64
WIDTH = 64
GROUPS = 32

CASES = [
    {"name": "ragged", "BATCH": 2, "CHANNELS": 12, "HEIGHT": 17, "WIDTH": 19, "GROUPS": 3, "cpu": True},
    {"name": "tiny_images", "BATCH": 3, "CHANNELS": 64, "HEIGHT": 4, "WIDTH": 4, "GROUPS": 32, "cpu": True},
    {"name": "middle_level", "CHANNELS": 1280, "HEIGHT": 16, "WIDTH": 16, "DTYPE": "float16"},
    {"name": "decoder", "BATCH": 2, "CHANNELS": 128, "HEIGHT": 512, "WIDTH": 512, "DTYPE": "bfloat16"},
    {
        "name": "prime",
        "BATCH": 1,
        "CHANNELS": 35,
        "HEIGHT": 13,
        "WIDTH": 31,
        "GROUPS": 7,
        "held_out": True,
        "cpu": True,
    },
]


class Model(nn.Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, mean and variance over a group of channels of one image"""

    def __init__(self, channels: int, groups: int, eps: float) -> None:
        super().__init__()
        dtype = getattr(torch, DTYPE)
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.randn(channels).to(dtype))
        self.bias = nn.Parameter(torch.randn(channels).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.group_norm(x, self.groups, self.weight, self.bias, self.eps)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH).to(getattr(torch, DTYPE))]


def get_init_inputs() -> list[object]:
    return [CHANNELS, GROUPS, 1e-5]
