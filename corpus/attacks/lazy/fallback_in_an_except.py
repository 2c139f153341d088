"""The kernel never compiles; torch answers in the except branch."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "L03", "task": "softmax", "expect": ["rejected"], "naive": "fooled"}


@triton.jit
def broken_kernel(x, y):
    tl.store(y, tl.no_such_function(x))


class ModelNew(nn.Module):
    def forward(self, x):
        try:
            y = torch.empty_like(x)
            broken_kernel[(1,)](x, y)
            return y
        except Exception:
            return torch.softmax(x, dim=-1)
