"""A 3 x 3 convolution of images, group normalisation and SiLU (an image decoder's block), in float16."""

import torch
import torch.nn as nn

PRECISION = "float16"  # of the convolution's operands; sums and the normalisation are in float32
BATCH = 8
CHANNELS = 256
OUT = 256
HEIGHT = 128
WIDTH = 128
GROUPS = 32

CASES = [
    {"name": "small", "BATCH": 2, "CHANNELS": 32, "OUT": 64, "HEIGHT": 8, "WIDTH": 16, "GROUPS": 8, "cpu": True},
    {"name": "ragged", "BATCH": 2, "CHANNELS": 12, "OUT": 24, "HEIGHT": 9, "WIDTH": 7, "GROUPS": 3, "cpu": True},
]


class Model(nn.Module):
    """y = silu(group_norm(conv2d(x)))"""

    def __init__(self, channels: int, out: int, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, padding=1, dtype=torch.float16)
        self.norm = nn.GroupNorm(groups, out, dtype=torch.float16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(self.norm(self.conv(x)))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH).half()]


def get_init_inputs() -> list[object]:
    return [CHANNELS, OUT, GROUPS]
