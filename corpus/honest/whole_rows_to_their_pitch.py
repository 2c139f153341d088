"""A check that every load has a mask refuses this. Honest: the task's contract lets rows be read to where the next one
begins, and what is read there is replaced before anything is computed from it."""

# task: h_pitched_softmax
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G69", "task": "h_pitched_softmax"}


@triton.jit
def softmax_kernel(x, y, cols, pitch, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, TILE)
    high = tl.full((TILE,), -float("inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    for start in range(0, pitch, TILE):
        v = tl.where(start + i < cols, tl.load(x + row * pitch + start + i), -float("inf"))
        higher = tl.maximum(high, v)
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(high - base) + tl.exp(v - base)
        high = higher
    top = tl.max(high, 0)
    scale = 1 / tl.sum(total * tl.exp(high - top), 0)
    for start in range(0, pitch, TILE):
        v = tl.load(x + row * pitch + start + i)
        tl.store(y + row * cols + start + i, tl.exp(v - top) * scale, mask=start + i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], x.stride(0), TILE=64)
        return y
