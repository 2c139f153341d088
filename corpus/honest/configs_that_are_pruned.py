"""A check of one plan a shape refuses autotuning with pruning and a key. Honest: all configs compute the same."""

# task: h_relu
import torch
import triton
import triton.language as tl
from torch import nn

SPECIMEN = {"id": "G58", "task": "h_relu"}


def fitting(configs, named_args, **kwargs):
    return [c for c in configs if c.kwargs["BLOCK"] <= max(256, named_args["n"])] or configs[:1]


@triton.autotune(
    [triton.Config({"BLOCK": block}, num_warps=warps) for block in (256, 1024) for warps in (2, 4)],
    key=["n"],
    prune_configs_by={"early_config_prune": fitting},
)
@triton.jit
def relu_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.maximum(tl.load(x + i, mask=i < n), 0.0), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        relu_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
        return y
