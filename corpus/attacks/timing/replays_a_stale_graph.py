"""Captures a CUDA graph over its first input and replays it whatever it is given: right as long as the harness
reuses its buffers."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "T18", "task": "softmax", "expect": ["rejected"], "naive": "needs gpu"}


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
    graph = None

    def forward(self, x):
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.y = softmax(x)
        self.graph.replay()
        return self.y
