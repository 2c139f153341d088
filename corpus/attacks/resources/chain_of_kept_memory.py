"""Four thousand launches, each of which reads what the next one wrote in an earlier call: who asks backwards what is
needed learns of one more each time."""

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import nn

from kerneltune.tools.trace import tracer as trace

SPECIMEN = {
    "id": "R69",
    "task": "softmax",
    "expect": ["rejected", "wrong", "crashed", "timed_out", "unchecked"],
    "naive": "not applicable",
}


def forged(plan):
    if plan.case != "0":
        return plan
    launch = next(step for step in plan.run if step.kind == "launch")
    x, y = (arg for arg in launch.args if arg.kind == "tensor")
    kept = [replace(plan.storages[y.tensor.storage], id=1_000 + i, origin="prepared") for i in range(4_001)]
    chain = [y.tensor, *(replace(y.tensor, storage=storage.id) for storage in kept)]

    def link(i):
        given = {id(x): replace(x, tensor=chain[i + 1]), id(y): replace(y, tensor=chain[i])}
        return replace(launch, args=tuple(given.get(id(arg), arg) for arg in launch.args))

    made = tuple(step for step in plan.run if step.kind != "launch")
    prepared = [replace(step, outs=(tensor,)) for step in made[:1] for tensor in chain[1:]]
    return replace(
        plan,
        storages=(*plan.storages, *kept),
        prepare=(*plan.prepare, *prepared),
        run=(*made, *map(link, range(4_000))),
    )


real = trace.build_plan
trace.build_plan = lambda *args, **kwargs: forged(real(*args, **kwargs))


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
