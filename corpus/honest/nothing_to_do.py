"""A check for returns without a launch refuses one for empty inputs. Honest: of nothing nothing is to be computed,
and no input of the task's is empty."""

# task: h_relu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G65", "task": "h_relu"}


@triton.jit
def relu_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.maximum(tl.load(x + i, mask=i < n), 0.0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        if x.numel() == 0:
            return y
        relu_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
