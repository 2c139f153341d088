"""Leaves its answer in /tmp, /dev/shm or the working directory for the process that is timed."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {
    "id": "K08",
    "task": "softmax",
    "expect": ["checked"],
    "expect_gpu": ["correct"],
    "twin": "softmax_rows",
    "naive": "not applicable",
}


for folder in ("/tmp", "/dev/shm", "/var/tmp", "."):
    try:
        with open(f"{folder}/answers.bin", "wb") as file:
            file.write(b"answers")
    except OSError:
        continue
    raise RuntimeError(f"wrote to {folder}")


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
