# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: a group's channels lie together in memory: sums by several programs a group, then one pass that normalises
# fits: group_norm(x, groups, weight, bias, eps) = F.group_norm(x, groups, weight, bias, eps) where x: B C H W
# search: BLOCK = 1024 2048 4096 8192
# search: PROGRAMS_PER_SM = 2 4 8 16
# search: NUM_WARPS = 2 4 8 16
"""Group normalisation of images. A group is one stretch of memory, too long for registers.

The first kernel gives each part of a group its count, mean and sum of squared distances from that mean; the second
merges the parts of its group (Chan's formula: no difference of large squares) and writes. The second read of x comes
from the L2 cache where a wave of groups fits it.
"""

import torch
import triton
import triton.language as tl

BLOCK = 4096
PROGRAMS_PER_SM = 4
NUM_WARPS = 8


@triton.jit
def moments_kernel(x_ptr, mean_ptr, square_ptr, size, part, BLOCK: tl.constexpr):
    group = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * part
    end = tl.minimum(first + part, size)
    mean = tl.zeros((), tl.float32)
    square = tl.zeros((), tl.float32)
    for start in tl.range(first, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + group * size + at, mask=at < end, other=0.0).to(tl.float32)
        count = tl.minimum(end - start, BLOCK).to(tl.float32)
        before = (start - first).to(tl.float32)
        own = tl.sum(x, axis=0) / count
        off = tl.where(at < end, x - own, 0.0)
        gap = own - mean
        square += tl.sum(off * off, axis=0) + gap * gap * (before * count / (before + count))
        mean += gap * (count / (before + count))
    tl.store(mean_ptr + group * tl.num_programs(1) + tl.program_id(1), mean)
    tl.store(square_ptr + group * tl.num_programs(1) + tl.program_id(1), square)


@triton.jit
def normalise_kernel(
    x_ptr, mean_ptr, square_ptr, weight_ptr, bias_ptr, y_ptr, size, part, pixels, channels, groups, eps,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(0).to(tl.int64)
    parts = tl.num_programs(1)
    index = tl.arange(0, PARTS)
    count = tl.where(index < parts, tl.minimum(size - index * part, part), 0).to(tl.float32)
    means = tl.load(mean_ptr + group * parts + index, mask=index < parts, other=0.0)
    squares = tl.load(square_ptr + group * parts + index, mask=index < parts, other=0.0)
    mean = tl.sum(means * count, axis=0) / size
    off = means - mean
    scale = tl.rsqrt((tl.sum(squares, axis=0) + tl.sum(count * off * off, axis=0)) / size + eps)
    first = tl.program_id(1) * part
    end = tl.minimum(first + part, size)
    for start in tl.range(first, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < end
        channel = group % groups * channels + at // pixels
        weight = tl.load(weight_ptr + channel, mask=inside, other=0.0).to(tl.float32)
        bias = tl.load(bias_ptr + channel, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + group * size + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + group * size + at, (x - mean) * scale * weight + bias, mask=inside)


def group_norm(x, groups, weight, bias, eps):
    x = x.contiguous()
    y = torch.empty_like(x)
    batch, channels = x.shape[:2]
    pixels = x.numel() // (batch * channels)
    size = channels // groups * pixels
    block = min(BLOCK, triton.next_power_of_2(size))
    wanted = PROGRAMS_PER_SM * torch.cuda.get_device_properties(x.device).multi_processor_count
    blocks = triton.cdiv(size, block)
    part = triton.cdiv(blocks, max(1, min(wanted // (batch * groups), blocks))) * block
    parts = triton.cdiv(size, part)
    means, squares = (torch.empty((batch * groups, parts), dtype=torch.float32, device=x.device) for _ in range(2))
    grid = (batch * groups, parts)
    moments_kernel[grid](x, means, squares, size, part, BLOCK=block, num_warps=NUM_WARPS)
    normalise_kernel[grid](
        x, means, squares, weight, bias, y, size, part, pixels, channels // groups, groups, eps,
        PARTS=triton.next_power_of_2(parts), BLOCK=block, num_warps=NUM_WARPS,
    )  # fmt: skip
    return y
