# order: 1
# says: a group's channels lie together in memory: sums by several programs a group, then one pass that normalises
# fits: group_norm(x, groups, weight, bias, eps) = F.group_norm(x, groups, weight, bias, eps) where x: B C H W, weight: C, bias: C
# search: BLOCK = 4096 8192
# search: PROGRAMS_PER_SM = 2 4 8
# search: NUM_WARPS = 8 16
"""Group normalisation of images. A group is one stretch of memory, too long for registers.

The first kernel gives each part of a group its count, mean and sum of squared distances from that mean; the second
merges the parts of its group (Chan's formula: no difference of large squares) and writes, in tiles of whole channels,
so that weight and bias are one vector a tile. On an H200, 168 MB of float32 took 131-133 us so (127 in TorchInductor's
two kernels); x comes from memory twice, and a policy that would keep it in the L2 between them cost 0.6 %. It is for
groups that are too few for one program each.
"""

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
    x_ptr, mean_ptr, square_ptr, weight_ptr, bias_ptr, y_ptr, part, parts, share, pixels, channels, groups,
    eps: tl.constexpr, PARTS: tl.constexpr, CHANNELS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(0).to(tl.int64)
    size = channels * pixels
    index = tl.arange(0, PARTS)
    count = tl.where(index < parts, tl.minimum(size - index * part, part), 0).to(tl.float32)
    means = tl.load(mean_ptr + group * parts + index, mask=index < parts, other=0.0)
    squares = tl.load(square_ptr + group * parts + index, mask=index < parts, other=0.0)
    mean = tl.sum(means * count, axis=0) / size
    off = means - mean
    scale = tl.rsqrt((tl.sum(squares, axis=0) + tl.sum(count * off * off, axis=0)) / size + eps)
    wide = tl.cdiv(pixels, PIXELS)
    steps = tl.cdiv(channels, CHANNELS) * wide
    first = tl.program_id(1) * share
    for step in tl.range(first, tl.minimum(first + share, steps)):
        channel = step // wide * CHANNELS + tl.arange(0, CHANNELS)
        pixel = step % wide * PIXELS + tl.arange(0, PIXELS)[None, :]
        at = group * size + channel[:, None] * pixels + pixel
        inside = (channel[:, None] < channels) & (pixel < pixels)
        own = group % groups * channels + channel
        weight = tl.load(weight_ptr + own, mask=channel < channels, other=0.0, eviction_policy="evict_last")
        bias = tl.load(bias_ptr + own, mask=channel < channels, other=0.0, eviction_policy="evict_last")
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        y = (x - mean) * (weight.to(tl.float32) * scale)[:, None] + bias.to(tl.float32)[:, None]
        tl.store(y_ptr + at, y, mask=inside)


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
    wide = min(block, triton.next_power_of_2(pixels))
    steps = triton.cdiv(channels // groups, block // wide) * triton.cdiv(pixels, wide)
    share = triton.cdiv(steps, parts)
    normalise_kernel[(batch * groups, triton.cdiv(steps, share))](
        x, means, squares, weight, bias, y, part, parts, share, pixels, channels // groups, groups, eps,
        PARTS=triton.next_power_of_2(parts), CHANNELS=block // wide, PIXELS=wide, num_warps=NUM_WARPS,
    )  # fmt: skip
    return y
