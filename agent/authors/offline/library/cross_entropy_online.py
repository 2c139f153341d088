# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: one walk over the row for maximum and sum together; the target's logit is one load
# fits: cross_entropy(x, target) = F.cross_entropy(x, target, reduction="none") where x: R C, target: R
# search: BLOCK = 1024 2048 4096 8192 16384
# search: NUM_WARPS = 2 4 8 16 32
# search: NUM_STAGES = 1 2 3 4
"""Cross entropy per row in a single read of the logits, however large the vocabulary.

Lanes keep a maximum and a sum of their own; they meet once, after the row. A row is read once and never again, so it
is marked to leave the cache first.
"""

import torch
import triton
import triton.language as tl

BLOCK = 4096
NUM_WARPS = 8
NUM_STAGES = 3


@triton.jit
def cross_entropy_kernel(x_ptr, target_ptr, loss_ptr, cols, ignored, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * cols
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column, mask=column < cols, other=-float("inf"), eviction_policy="evict_first")
        x = x.to(tl.float32)
        higher = tl.maximum(top, x)
        safe = tl.where(higher == -float("inf"), 0.0, higher)  # a lane that has seen only -inf adds nothing
        total = total * tl.exp(top - safe) + tl.exp(x - safe)
        top = higher
    row_top = tl.max(top, axis=0)
    row_total = tl.sum(total * tl.exp(top - row_top), axis=0)
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
    cross_entropy_kernel[(rows,)](x, target, loss, cols, -100, BLOCK=block, STAGES=NUM_STAGES, num_warps=NUM_WARPS)
    return loss
