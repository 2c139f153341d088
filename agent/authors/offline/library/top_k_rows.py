# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: value and place sorted as one 64-bit number, a tile of short rows a program
# fits: top_k(x, k) = torch.topk(x, k, dim=-1)[0], torch.topk(x, k, dim=-1)[1] where x: R C<2049
# search: TILE = 256 512 1024 2048 4096
# search: NUM_WARPS = 1 2 4 8
"""The k largest of short rows (a router's experts), in order, with their places.

A float's bits are made to sort as a whole number does, and the place goes below them into one 64-bit key, so that a
single sort moves both, no two keys are equal and of equal values the first place wins. Rows are read once.
"""

import torch
import triton
import triton.language as tl

TILE = 1024  # elements a program
NUM_WARPS = 4


@triton.jit
def top_k_kernel(
    x_ptr, value_ptr, place_ptr, rows, cols, k, ROWS: tl.constexpr, COLS: tl.constexpr, KEPT: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (column < cols)
    x = tl.load(x_ptr + row * cols + column, mask=inside, other=-float("inf")).to(tl.float32)
    bits = x.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # negative floats sort the other way round
    key = (bits.to(tl.int64) << 32) | (COLS - 1 - column).to(tl.int64)
    key = tl.where(column < cols, key, -0x7FFFFFFFFFFFFFFF)  # behind every element, -inf included
    best = tl.topk(key, KEPT, dim=1)
    place = COLS - 1 - (best & 0xFFFFFFFF)
    bits = (best >> 32).to(tl.int32)
    value = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)
    rank = tl.arange(0, KEPT)[None, :]
    at = row * k + rank
    tl.store(value_ptr + at, value.to(value_ptr.dtype.element_ty), mask=(row < rows) & (rank < k))
    tl.store(place_ptr + at, place, mask=(row < rows) & (rank < k))


def top_k(x, k):
    x = x.contiguous()
    rows, cols = x.shape
    values = torch.empty((rows, k), dtype=x.dtype, device=x.device)
    places = torch.empty((rows, k), dtype=torch.int64, device=x.device)
    block = triton.next_power_of_2(cols)
    height = max(1, TILE // block)
    top_k_kernel[(triton.cdiv(rows, height),)](
        x, values, places, rows, cols, k, ROWS=height, COLS=block, KEPT=triton.next_power_of_2(k), num_warps=NUM_WARPS
    )
    return values, places
