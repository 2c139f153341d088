# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, E501, N803
# says: logits live in registers only: each program keeps a maximum and a sum for its part of the vocabulary, then a merge
# task: linear_cross_entropy = linear_cross_entropy(x, self.weight, target)
# search: BLOCK_M = 64 128 256
# search: BLOCK_N = 64 128 256
# search: BLOCK_K = 32 64 128
# search: PROGRAMS_PER_SM = 1 2 4
# search: NUM_WARPS = 4 8
# search: NUM_STAGES = 2 3 4
"""Linear layer and cross entropy together: the logits (tokens x vocabulary) never reach memory.

A program has a block of tokens and a part of the vocabulary; it goes through that part block by block, as an ordinary
matrix product whose tile ends in a running maximum and sum instead of a store; logits are never rounded to 16 bits. Programs of the same part of the vocabulary are neighbours, so the weight, by far
the largest operand, comes from the L2 cache for all but the first. A second kernel merges the parts.
"""

import torch
import triton
import triton.language as tl

BLOCK_M = 128
BLOCK_N = 256
BLOCK_K = 64
PROGRAMS_PER_SM = 1
NUM_WARPS = 8
NUM_STAGES = 3


@triton.jit
def parts_kernel(
    x_ptr, weight_ptr, target_ptr, top_ptr, total_ptr, hit_ptr, m, n, k, part,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    first = tl.program_id(1) * part
    end = tl.minimum(first + part, n)
    target = tl.load(target_ptr + i, mask=i < m, other=-1)
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    hit = tl.zeros((BM,), tl.float32)
    for column in tl.range(first, end, BN):
        j = column + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), tl.float32)
        for start in tl.range(0, k, BK):
            t = start + tl.arange(0, BK)
            x_at = i[:, None].to(tl.int64) * k + t[None, :]
            w_at = j[None, :].to(tl.int64) * k + t[:, None]
            p = tl.load(x_ptr + x_at, mask=(i[:, None] < m) & (t[None, :] < k), other=0.0)
            q = tl.load(weight_ptr + w_at, mask=(t[:, None] < k) & (j[None, :] < end), other=0.0)
            acc = tl.dot(p, q, acc)
        hit += tl.sum(tl.where(j[None, :] == target[:, None], acc, 0.0), 1)
        acc = tl.where(j[None, :] < end, acc, -float("inf"))
        higher = tl.maximum(top, tl.max(acc, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(acc - higher[:, None]), 1)
        top = higher
    at = tl.program_id(1) * m + i
    tl.store(top_ptr + at, top, mask=i < m)
    tl.store(total_ptr + at, total, mask=i < m)
    tl.store(hit_ptr + at, hit, mask=i < m)


@triton.jit
def merge_kernel(top_ptr, total_ptr, hit_ptr, loss_ptr, m, parts, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, PARTS)[:, None]
    at = part * m + i[None, :]
    inside = (part < parts) & (i[None, :] < m)
    tops = tl.load(top_ptr + at, mask=inside, other=-float("inf"))
    top = tl.where(i < m, tl.max(tops, 0), 0.0)
    total = tl.sum(tl.load(total_ptr + at, mask=inside, other=0.0) * tl.exp(tops - top[None, :]), 0)
    hit = tl.sum(tl.load(hit_ptr + at, mask=inside, other=0.0), 0)
    tl.store(loss_ptr + i, tl.log(total) + (top - hit), mask=i < m)


def linear_cross_entropy(x, weight, target):
    x, weight, target = x.contiguous(), weight.contiguous(), target.contiguous()
    (m, k), n = x.shape, weight.shape[0]
    loss = torch.empty((m,), dtype=torch.float32, device=x.device)
    rows = triton.cdiv(m, BLOCK_M)
    blocks = triton.cdiv(n, BLOCK_N)
    wanted = PROGRAMS_PER_SM * torch.cuda.get_device_properties(x.device).multi_processor_count
    part = triton.cdiv(blocks, max(1, min(wanted // rows, blocks, 64))) * BLOCK_N
    parts = triton.cdiv(n, part)
    top, total, hit = (torch.empty((parts, m), dtype=torch.float32, device=x.device) for _ in range(3))
    parts_kernel[(rows, parts)](
        x, weight, target, top, total, hit, m, n, k, part, BM=BLOCK_M, BN=BLOCK_N, BK=BLOCK_K,
        num_warps=NUM_WARPS, num_stages=NUM_STAGES,
    )  # fmt: skip
    merge_kernel[(triton.cdiv(m, 64),)](
        top, total, hit, loss, m, parts, PARTS=triton.next_power_of_2(parts), BLOCK=64, num_warps=4
    )
    return loss
