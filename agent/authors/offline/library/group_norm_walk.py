# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, E501, N803
# order: 1
# says: a program walks over its group twice, few groups at a time, so that the second walk reads from the L2 cache
# fits: group_norm(x, groups, weight, bias, eps) = F.group_norm(x, groups, weight, bias, eps) where x: B C H W
# search: BLOCK = 2048 4096 8192 16384
# search: PROGRAMS_PER_SM = 1 2 4
# search: NUM_WARPS = 8 16 32
# search: NUM_STAGES = 1 2 3 4
# search: LEAVES_FIRST = 0 1
"""Group normalisation of images, for many groups of some hundred kilobytes each.

Two kernels, one for moments and one that normalises, read x twice from memory: nothing of it is left in the cache when
the second begins (131 us for 168 MB of float32 on an H200). Here a fixed grid keeps few groups under way, so that what a
program read for the moments (Welford's, in each lane, merged once by Chan's formula: no difference of large squares) is
still in the L2 cache when it reads it again to write. LEAVES_FIRST marks the second read and the writes as the first to
leave that cache.
"""

import torch
import triton
import triton.language as tl

BLOCK = 8192
PROGRAMS_PER_SM = 1
NUM_WARPS = 32
NUM_STAGES = 3
LEAVES_FIRST = 1


@triton.jit
def moments(x_ptr, size, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Mean and mean squared distance from it of `size` elements."""
    lane = tl.arange(0, BLOCK)
    mean = tl.zeros([BLOCK], tl.float32)
    square = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        inside = start + lane < size
        x = tl.load(x_ptr + start + lane, mask=inside, other=0.0).to(tl.float32)
        off = tl.where(inside, x - mean, 0.0)
        mean += off * (1.0 / (start // BLOCK + 1).to(tl.float32))
        square += off * (x - mean)
    count = ((size - lane + BLOCK - 1) // BLOCK).to(tl.float32)  # of elements that a lane has seen; 0 for none
    whole = tl.sum(mean * count, axis=0) / size
    apart = mean - whole
    return whole, (tl.sum(square, axis=0) + tl.sum(count * apart * apart, axis=0)) / size


@triton.jit
def group_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, total, groups, channels, pixels, eps,
    BLOCK: tl.constexpr, CHANNELS: tl.constexpr, PIXELS: tl.constexpr, STAGES: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    size = channels * pixels
    wide = tl.cdiv(pixels, PIXELS)
    for group in tl.range(tl.program_id(0), total, tl.num_programs(0)):
        x_own = x_ptr + group.to(tl.int64) * size
        y_own = y_ptr + group.to(tl.int64) * size
        mean, variance = moments(x_own, size, BLOCK, STAGES)
        scale = tl.rsqrt(variance + eps)
        for step in tl.range(0, tl.cdiv(channels, CHANNELS) * wide, num_stages=STAGES):
            channel = step // wide * CHANNELS + tl.arange(0, CHANNELS)[:, None]
            pixel = step % wide * PIXELS + tl.arange(0, PIXELS)[None, :]
            at = channel * pixels + pixel
            inside = (channel < channels) & (pixel < pixels)
            x = tl.load(x_own + at, mask=inside, other=0.0, eviction_policy=POLICY).to(tl.float32)
            own = group % groups * channels + channel
            weight = tl.load(weight_ptr + own, mask=channel < channels, other=0.0).to(tl.float32) * scale
            bias = tl.load(bias_ptr + own, mask=channel < channels, other=0.0).to(tl.float32)
            tl.store(y_own + at, (x - mean) * weight + bias, mask=inside, eviction_policy=POLICY)


def group_norm(x, groups, weight, bias, eps):
    x = x.contiguous()
    y = torch.empty_like(x)
    batch, channels = x.shape[0], x.shape[1] // groups
    pixels = x.numel() // (batch * x.shape[1])
    block = min(BLOCK, triton.next_power_of_2(channels * pixels))
    wide = min(block, triton.next_power_of_2(pixels))
    programs = PROGRAMS_PER_SM * torch.cuda.get_device_properties(x.device).multi_processor_count
    group_norm_kernel[(min(programs, batch * groups),)](
        x, weight, bias, y, batch * groups, groups, channels, pixels, eps,
        BLOCK=block, CHANNELS=block // wide, PIXELS=wide, STAGES=NUM_STAGES,
        POLICY="evict_first" if LEAVES_FIRST else "", num_warps=NUM_WARPS,
    )  # fmt: skip
    return y
