"""A list of known scans and reductions refuses Welford's over counts, means and squares. Honest: merged by Chan's
formula, pair by pair."""

# task: layer_norm
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G63", "task": "layer_norm"}


@triton.jit
def merged(count, mean, square, more, other, rest):
    total = count + more
    share = tl.where(total > 0, more / total, 0.0)
    d = other - mean
    return total, mean + d * share, square + rest + d * d * count * share


@triton.jit
def layer_norm_kernel(x, weight, bias, y, cols, eps, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=0.0)
    count = (i < cols).to(tl.float32)
    _, mean, square = tl.reduce((count, v, v * 0.0), 0, merged)
    scale = tl.rsqrt(square / cols + eps)
    w, b = tl.load(weight + i, mask=i < cols), tl.load(bias + i, mask=i < cols)
    tl.store(y + at, (v - mean) * scale * w + b, mask=i < cols)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        y = torch.empty_like(x)
        rows, cols = x.shape
        layer_norm_kernel[(rows,)](x, self.weight, self.bias, y, cols, 1e-5, BLOCK=triton.next_power_of_2(cols))
        return y
