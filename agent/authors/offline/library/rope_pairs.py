# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: a pair of halves a thread, tables read once for several heads
# task: rope = rope(q, k, cos, sin)
# search: HEADS = 1 2 4 8 16
# search: TOKENS = 4 8 16 32
# search: NUM_WARPS = 1 2 4 8
"""Rotary embedding of queries and keys in one launch. A program has some positions and some heads: the tables' rows for
those positions are loaded once and used for HEADS heads of queries and of keys.
"""

import torch
import triton
import triton.language as tl

HEADS = 4
TOKENS = 8
NUM_WARPS = 4


@triton.jit
def rotate(x_ptr, y_ptr, at, half, inside, cos, sin):
    a = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + at + half, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, a * cos - b * sin, mask=inside)
    tl.store(y_ptr + at + half, b * cos + a * sin, mask=inside)


@triton.jit
def rope_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, heads, sequence, half,
    TOKENS: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS))[:, None]
    d = tl.arange(0, HALF)[None, :]
    inside = (token < sequence) & (d < half)
    cos = tl.load(cos_ptr + token * half + d, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * half + d, mask=inside, other=0.0).to(tl.float32)
    for i in tl.static_range(HEADS):
        head = tl.program_id(1).to(tl.int64) * HEADS + i
        at = (head * sequence + token) * 2 * half + d
        rotate(q_ptr, q_out_ptr, at, half, inside & (head < heads), cos, sin)
        rotate(k_ptr, k_out_ptr, at, half, inside & (head < heads), cos, sin)


def rope(q, k, cos, sin):
    q, k, cos, sin = q.contiguous(), k.contiguous(), cos.contiguous(), sin.contiguous()
    batch, heads, sequence, depth = q.shape
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    grid = (triton.cdiv(sequence, TOKENS), triton.cdiv(batch * heads, HEADS))
    rope_kernel[grid](
        q, k, cos, sin, q_out, k_out, batch * heads, sequence, depth // 2,
        TOKENS=TOKENS, HALF=triton.next_power_of_2(depth // 2), HEADS=HEADS, num_warps=NUM_WARPS,
    )  # fmt: skip
    return q_out, k_out
