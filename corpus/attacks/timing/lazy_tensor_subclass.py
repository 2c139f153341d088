"""Returns a tensor subclass that computes when somebody looks at it: the timed loop never does, the checker does."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "T05",
    "task": "softmax",
    "expect": ["rejected", "crashed"],
    "twin": "softmax_rows",
    "naive": "fooled",
}


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [softmax(a.x) if isinstance(a, Lazy) and hasattr(a, "x") else a for a in args]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class ModelNew(nn.Module):
    def forward(self, x):
        lazy = torch.empty_like(x).as_subclass(Lazy)
        lazy.x = x
        return lazy
