"""Reads the built-in task files and the library of expert kernels from the installed packages, held-out cases and
all."""

import pathlib
import sys

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "R50",
    "task": "softmax",
    "expect": ["checked"],
    "expect_gpu": ["correct"],
    "twin": "softmax_rows",
    "naive": "not applicable",
}


package = pathlib.Path(sys.modules["kerneltune"].__path__[0])
folders = package, package.parent  # in a checkout the package holds links
for place in [
    folder / name
    for folder in folders
    for name in ("tools/tasks/softmax.py", "agent/authors/search/experts/softmax_row.py")
]:
    try:
        text = place.read_text()
    except OSError:
        continue
    raise RuntimeError(f"read {len(text)} characters of {place.name}")


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
