"""A small trusted candidate that warms a fresh tracer: the first kernel costs 2-3 s of compiler start-up."""

from tools.plan.messages import TraceCase

CASE = TraceCase(
    name="warm",
    inputs=({"$tensor": {"shape": [64, 64], "dtype": "float32", "stride": None}},),
    init_args=(),
)

SOURCE = """
import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    total = tl.sum(tl.exp(x), axis=0)
    tl.store(y_ptr + offsets, x * 2 / total, mask=offsets < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        double_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
"""
