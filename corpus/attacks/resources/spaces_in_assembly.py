"""Assembly with tens of thousands of spaces: the regular expression that strips debug locations before hashing
takes quadratic time on them, in the supervisor, where no limit applies."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "R46",
    "task": "softmax",
    "expect": ["checked", "rejected"],
    "expect_gpu": ["rejected", "correct"],
    "naive": "not applicable",
}


SPACES = tl.constexpr(" " * 20_000 + "mov.f32 $0, $1;")


@triton.jit
def touched(v):
    return tl.inline_asm_elementwise(SPACES, "=f,f", [v], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = touched(tl.load(x + at, mask=i < cols, other=float("-inf")))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


def softmax(x):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


class ModelNew(nn.Module):
    def forward(self, x):
        return softmax(x)
