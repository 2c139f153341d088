# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: one walk over the row for maximum and sum together; the target's logit is one load
# fits: cross_entropy(x, target) = F.cross_entropy(x, target, reduction="none") where x: R C, target: R
# search: BLOCK = 1024 2048 4096 8192
# search: NUM_WARPS = 4 8 16
# search: NUM_STAGES = 1 3
# search: LEAVES_LAST = 0 1
"""Cross entropy per row in a single read of the logits, however large the vocabulary.

Lanes keep a maximum and a sum of their own; they meet once, after the row. Eight columns a thread are 40 registers or
so, which leaves room for 40 kB and more under way on each multiprocessor. What is read leaves the L2 last (0.3-2 %
faster in softmax and RMS normalisation on an H200, while leaving first cost 4-8 %) where it is loaded straight to
registers: with NUM_STAGES above 1 it goes through shared memory ahead of time, and Triton drops the policy. Not timed
here.
"""

import torch
import triton
import triton.language as tl

BLOCK = 4096
NUM_WARPS = 16
NUM_STAGES = 1
LEAVES_LAST = 1


@triton.jit
def cross_entropy_kernel(
    x_ptr, target_ptr, loss_ptr, cols, ignored, BLOCK: tl.constexpr, STAGES: tl.constexpr, POLICY: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * cols
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column, mask=column < cols, other=-float("inf"), eviction_policy=POLICY)
        x = x.to(tl.float32)
        higher = tl.maximum(top, x)
        safe = tl.where(higher == -float("inf"), 0.0, higher)  # a lane that has seen only -inf adds nothing
        total = total * tl.exp2((top - safe) * 1.4426950408889634) + tl.exp2((x - safe) * 1.4426950408889634)
        top = higher
    row_top = tl.max(top, axis=0)
    row_total = tl.sum(total * tl.exp2((top - row_top) * 1.4426950408889634), axis=0)
    target = tl.load(target_ptr + row)
    at = tl.where(target == ignored, 0, target)
    # the two large terms first: their difference is exact or small
    loss = tl.log(row_total) + (row_top - tl.load(x_ptr + at).to(tl.float32))
    tl.store(loss_ptr + row, tl.where(target == ignored, 0.0, loss))


def cross_entropy(x, target):
    x, target = x.contiguous(), target.contiguous()
    rows, cols = x.shape
    loss = torch.empty((rows,), dtype=x.dtype, device=x.device)
    block = min(BLOCK, triton.next_power_of_2(cols))
    warps = max(NUM_WARPS, min(32, block // 1024))  # at most 32 lanes a thread, of three numbers each
    cross_entropy_kernel[(rows,)](
        x, target, loss, cols, -100,
        BLOCK=block, STAGES=NUM_STAGES, POLICY="evict_last" if LEAVES_LAST else "", num_warps=warps,
    )  # fmt: skip
    return loss
