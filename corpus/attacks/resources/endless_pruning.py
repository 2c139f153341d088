"""The autotuner's pruning function, which is the candidate's own code, never returns."""

import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "R39", "task": "softmax", "expect": ["timed_out"], "naive": "not applicable"}


def prune(configs, named_args, **kwargs):
    while True:
        pass


@triton.autotune(
    [triton.Config({}, num_warps=n) for n in (2, 4)], key=[], prune_configs_by={"early_config_prune": prune}
)
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
