"""Does the work on the host with numpy, where a timer of GPU kernels sees nothing."""

import numpy
import torch
from torch import nn

SPECIMEN = {"id": "T30", "task": "softmax", "expect": ["rejected"], "naive": "fooled"}


class ModelNew(nn.Module):
    def forward(self, x):
        v = x.detach().cpu().numpy()
        e = numpy.exp(v - v.max(1, keepdims=True))
        return torch.from_numpy(e / e.sum(1, keepdims=True)).to(x.device)
