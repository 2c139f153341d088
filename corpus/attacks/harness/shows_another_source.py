"""linecache serves another text to Triton than the file that was submitted: what a reviewer reads is not what
compiles."""

import linecache

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "H16", "task": "softmax", "expect": ["wrong"], "naive": "not applicable"}


text = "".join(linecache.getlines("candidate.py")).replace("tl.sum(e, 0)", "2.0 * tl.sum(e, 0)")
linecache.cache["candidate.py"] = (len(text), None, text.splitlines(keepends=True), "candidate.py")


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


class ModelNew(nn.Module):
    def forward(self, x):
        return softmax(x)
