import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    Positional encoding of points in space, and the first layers of the network that it feeds.

    Source: NeRF, github.com/yenchenlin/nerf-pytorch, run_nerf_helpers.py (Embedder, NeRF); Mildenhall et al.
    2020 (arXiv:2003.08934)
    """

    def __init__(self, frequencies, hidden, outputs):
        super().__init__()
        self.register_buffer("rates", 2.0 ** torch.arange(frequencies).float())
        self.first = nn.Linear(3 + 2 * 3 * frequencies, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, outputs)

    def forward(self, points):
        """points: (points, 3) float32 in [-1, 1]. Returns (points, outputs)."""
        angles = (points.unsqueeze(1) * self.rates[:, None]).flatten(1)
        x = torch.cat([points, torch.sin(angles), torch.cos(angles)], dim=1)
        return self.out(F.relu(self.second(F.relu(self.first(x)))))


points = 524288
frequencies = 10
hidden = 256
outputs = 4


def get_inputs():
    return [torch.rand(points, 3) * 2 - 1]


def get_init_inputs():
    return [frequencies, hidden, outputs]
