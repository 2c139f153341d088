"""A rule against unknown reductions ("no tl.sum in a mean") refuses Welford's method as a combiner of triples.
Honest: mean and squares merge as in torch's own kernel."""

# task: layer_norm
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F03c", "task": "layer_norm"}


@triton.jit
def merge(mean_a, squares_a, count_a, mean_b, squares_b, count_b):
    count = count_a + count_b
    share = tl.where(count == 0.0, 0.0, count_b / count)
    d = mean_b - mean_a
    return mean_a + d * share, squares_a + squares_b + d * d * count_a * share, count


@triton.jit
def layer_norm_kernel(x, w, b, y, cols, eps, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=0.0)
    mean, squares, _ = tl.reduce((v, tl.zeros_like(v), tl.where(i < cols, 1.0, 0.0)), 0, merge)
    weight, bias = tl.load(w + i, mask=i < cols), tl.load(b + i, mask=i < cols)
    tl.store(y + at, (v - mean) * tl.rsqrt(squares / cols + eps) * weight + bias, mask=i < cols)


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
