"""A harness that checks the first output alone, or wants one kernel an output, refuses a tuple that one launch
fills. Honest: queries and keys are rotated by the same angles, read once."""

# task: rope
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F12f", "task": "rope"}


@triton.jit
def rope_kernel(q, k, cos, sin, yq, yk, n, HALF: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    angle = row % n * HALF + i
    c = tl.load(cos + angle, mask=i < HALF).to(tl.float32)
    s = tl.load(sin + angle, mask=i < HALF).to(tl.float32)
    for part in tl.static_range(2):
        given, result = (q, yq) if part == 0 else (k, yk)
        at = row * 2 * HALF + i
        a = tl.load(given + at, mask=i < HALF).to(tl.float32)
        b = tl.load(given + at + HALF, mask=i < HALF).to(tl.float32)
        tl.store(result + at, a * c - b * s, mask=i < HALF)
        tl.store(result + at + HALF, b * c + a * s, mask=i < HALF)


class ModelNew(nn.Module):
    def forward(self, q, k, cos, sin):
        yq, yk = torch.empty_like(q), torch.empty_like(k)
        n, half = q.shape[2], q.shape[3] // 2
        rows = q.numel() // q.shape[3]
        rope_kernel[(rows,)](q, k, cos, sin, yq, yk, n, HALF=half, BLOCK=triton.next_power_of_2(half))
        return yq, yk
