# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# order: 5
# says: split rows: several programs share one row, for matrices with fewer rows than the GPU has multiprocessors
# fits: softmax(x) = torch.softmax(x, -1)
# fits: softmax(x) = torch.softmax(x, 1) where x: R C
# search: SPLITS = 2 4 8 16 32 64
# search: BLOCK = 512 1024 2048 4096 8192
# search: NUM_WARPS = 1 2 4 8 16 32
"""Softmax over the last dimension for few, very long rows: SPLITS programs share a row.

One program a row leaves most multiprocessors idle when there are fewer rows than those. The first kernel reduces each
part of a row to a maximum and a sum; the second combines a row's parts (a few numbers, from the L2 cache) and writes.
"""

import torch
import triton
import triton.language as tl

SPLITS = 16  # a power of two: the parts of a row are combined as one vector
BLOCK = 2048
NUM_WARPS = 8


@triton.jit
def softmax_parts_kernel(x_ptr, top_ptr, total_ptr, cols, part, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1)
    end = tl.minimum((index + 1) * part, cols)
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(index * part, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + column, mask=column < end, other=-float("inf")).to(tl.float32)
        new_top = tl.maximum(top, x)
        safe = tl.where(new_top == -float("inf"), 0.0, new_top)
        total = total * tl.exp(top - safe) + tl.exp(x - safe)
        top = new_top
    part_top = tl.max(top, axis=0)
    safe = tl.where(part_top == -float("inf"), 0.0, part_top)  # a part without columns has maximum -inf and sum 0
    tl.store(top_ptr + row * SPLITS + index, part_top)
    tl.store(total_ptr + row * SPLITS + index, tl.sum(total * tl.exp(top - safe), axis=0))


@triton.jit
def softmax_combine_kernel(x_ptr, y_ptr, top_ptr, total_ptr, cols, part, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1)
    parts = row * SPLITS + tl.arange(0, SPLITS)
    tops = tl.load(top_ptr + parts)
    top = tl.max(tops, axis=0)
    total = tl.sum(tl.load(total_ptr + parts) * tl.exp(tops - top), axis=0)
    end = tl.minimum((index + 1) * part, cols)
    for start in tl.range(index * part, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < end
        x = tl.load(x_ptr + row * cols + column, mask=inside, other=-float("inf")).to(tl.float32)
        tl.store(y_ptr + row * cols + column, tl.exp(x - top) / total, mask=inside)


def softmax(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    cols = x.shape[-1]
    rows = x.numel() // cols
    part = triton.cdiv(triton.cdiv(cols, SPLITS), BLOCK) * BLOCK  # whole blocks: aligned, wide loads
    tops = torch.empty((rows, SPLITS), dtype=torch.float32, device=x.device)
    totals = torch.empty((rows, SPLITS), dtype=torch.float32, device=x.device)
    options = {"SPLITS": SPLITS, "BLOCK": BLOCK, "num_warps": NUM_WARPS}
    softmax_parts_kernel[(rows, SPLITS)](x, tops, totals, cols, part, **options)
    softmax_combine_kernel[(rows, SPLITS)](x, y, tops, totals, cols, part, **options)
    return y
