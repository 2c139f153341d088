"""A count of work outside of forward ("precomputed") refuses weights that are packed by the constructor. Honest:
they are parameters, packing depends on no input, and a plan shows it as preparation. Here two vectors become one
table."""

# task: layer_norm
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F08a", "task": "layer_norm"}


@triton.jit
def layer_norm_kernel(x, table, y, cols, eps, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=0.0)
    mean = tl.sum(v, 0) / cols
    d = tl.where(i < cols, v - mean, 0.0)
    scale = tl.rsqrt(tl.sum(d * d, 0) / cols + eps)
    weight = tl.load(table + 2 * i, mask=i < cols)
    bias = tl.load(table + 2 * i + 1, mask=i < cols)
    tl.store(y + at, d * scale * weight + bias, mask=i < cols)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.bias = nn.Parameter(torch.zeros(cols))
        self.register_buffer("table", torch.stack([self.weight.data, self.bias.data], 1).contiguous(), persistent=False)

    def forward(self, x):
        y = torch.empty_like(x)
        rows, cols = x.shape
        layer_norm_kernel[(rows,)](x, self.table, y, cols, 1e-5, BLOCK=triton.next_power_of_2(cols))
        return y
