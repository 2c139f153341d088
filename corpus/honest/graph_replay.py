"""A ban on CUDA graphs refuses this: a replay can serve the inputs of the capture. Honest: each call copies its
arguments into the captured buffers, replays, and copies the result out."""

# task: softmax
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "F06a", "task": "softmax"}


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.graphs = {}

    def work(self, x, y):
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))

    def captured(self, x):
        key = (tuple(x.shape), x.dtype)
        if key not in self.graphs:
            given, result = torch.empty_like(x), torch.empty_like(x)
            self.work(given, result)  # compiles
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.work(given, result)
            self.graphs[key] = graph, given, result
        return self.graphs[key]

    def forward(self, x):
        graph, given, result = self.captured(x)
        given.copy_(x)
        graph.replay()
        return result.clone()
