"""A scan for branches on shapes ("hard-coded for the benchmark") refuses `@triton.heuristics`. Honest: the formulas
hold for any shape, and the flag only leaves out a mask that would be all true."""

# task: gelu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F21a", "task": "gelu"}


@triton.heuristics(
    {
        "BLOCK": lambda args: min(1024, triton.next_power_of_2(args["n"])),
        "EVEN": lambda args: args["n"] % min(1024, triton.next_power_of_2(args["n"])) == 0,
        "num_warps": lambda args: 8 if args["n"] > 1 << 20 else 4,
    }
)
@triton.jit
def gelu_kernel(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        v = tl.load(x + i)
        tl.store(y + i, 0.5 * v * (1 + tl.erf(v * 0.7071067811865476)))
    else:
        v = tl.load(x + i, mask=i < n)
        tl.store(y + i, 0.5 * v * (1 + tl.erf(v * 0.7071067811865476)), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        gelu_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
        return y
