"""A ban on streams refuses two halves on two streams. Honest: both wait for the current stream, and it
waits for both."""

# task: h_relu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G02", "task": "h_relu"}


@triton.jit
def relu_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.maximum(tl.load(x + i, mask=i < n), 0.0), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.streams = [torch.cuda.Stream() for _ in range(2)]

    def forward(self, x):
        y = torch.empty_like(x)
        here, half = torch.cuda.current_stream(), x.shape[0] // 2
        for stream, rows in zip(self.streams, (slice(0, half), slice(half, None))):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                part, out = x[rows], y[rows]
                relu_kernel[(triton.cdiv(part.numel(), 512),)](part, out, part.numel(), BLOCK=512)
        for stream in self.streams:
            here.wait_stream(stream)
        return y
