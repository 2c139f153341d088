"""A ban on assembly refuses lines with registers of their own. Honest: a multiplication and an addition on registers
alone."""

# task: h_scaled
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G45", "task": "h_scaled"}


@triton.jit
def fused(v, factor, b):
    return tl.inline_asm_elementwise(
        """
        {
            .reg .f32 product;
            mul.rn.f32 product, $1, $2;
            add.rn.f32 $0, product, $3;
        }
        """,
        "=f,f,f,f",
        [v, factor, b],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def scale_kernel(x, bias, y, factor, cols, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    b = tl.load(bias + i, mask=i < cols, other=0.0) if BIAS else tl.zeros((BLOCK,), tl.float32)
    v = tl.load(x + at, mask=i < cols, other=0.0)
    tl.store(y + at, fused(v, v * 0.0 + factor, b), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x, factor, bias=None):
        y = torch.empty_like(x)
        rows, cols = x.shape
        scale_kernel[(rows,)](
            x, x if bias is None else bias, y, factor, cols,
            BIAS=bias is not None, BLOCK=triton.next_power_of_2(cols),
        )  # fmt: skip
        return y
