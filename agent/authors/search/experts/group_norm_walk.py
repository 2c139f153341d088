# says: a group stays in registers where it fits; a wider one is walked over twice, from the L2 cache
# fits: group_norm(x, groups, weight, bias, eps) = F.group_norm(x, groups, weight, bias, eps) where x: B C H W, weight: C, bias: C
# search: BLOCK = 4096 8192
# search: PROGRAMS_PER_SM = 1 2
"""Group normalisation of images, for many groups of some hundred kilobytes each.

Two kernels, one for moments and one that normalises, read x twice from memory: nothing of it is left in the cache
when the second begins (127-132 us for 168 MB of float32 on an H200, where a copy would take 80). Here x is read once.

Groups of up to HELD elements stay in registers (160 kB of float32 by 32 warps), a program each: 84.5 us, and 86.2
where loads do not ask to leave the L2 last. Their channels are rarely a power of two, so two tiles hold them: ten are
eight and two. A fixed grid whose next group travelled to shared memory meanwhile took 95.4.

Wider groups are walked over twice by a fixed grid that keeps few groups under way, so that what a program read for
the moments (Welford's, in each lane, merged once by Chan's formula: no difference of large squares) is still in the
L2 cache when it reads it again to write: 117.3 us so for the same groups with 8192 elements a step, 126.9 with 16384,
120.0 where the first read does not ask to stay and the second does not leave first.
"""

HELD = 49152  # elements of a group; 32 warps have room for 48 each beside addresses
BLOCK = 8192
PROGRAMS_PER_SM = 1
NUM_WARPS = 32


@triton.jit
def scale_and_shift(weight_ptr, bias_ptr, first, channel, channels):
    """Weight and bias of a tile's channels, as a column. Loaded as vectors: as columns each thread would load them
    all."""
    used = channel < channels
    weight = tl.load(weight_ptr + first + channel, mask=used, other=0.0, eviction_policy="evict_last").to(tl.float32)
    bias = tl.load(bias_ptr + first + channel, mask=used, other=0.0, eviction_policy="evict_last").to(tl.float32)
    return weight[:, None], bias[:, None]


@triton.jit
def held_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, groups, eps: tl.constexpr, CHANNELS: tl.constexpr, PIXELS: tl.constexpr,
    HIGH: tl.constexpr, REST: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    size: tl.constexpr = CHANNELS * PIXELS  # known when this is compiled, so that addresses are one and offsets
    pixel = tl.arange(0, WIDE)[None, :]
    channel = tl.arange(0, HIGH)
    at = channel[:, None] * PIXELS + pixel
    inside = (channel[:, None] < CHANNELS) & (pixel < PIXELS)
    if REST:
        channel_2 = HIGH + tl.arange(0, REST)
        at_2 = channel_2[:, None] * PIXELS + pixel
        inside_2 = (channel_2[:, None] < CHANNELS) & (pixel < PIXELS)
    group = tl.program_id(0)
    x_own = x_ptr + group.to(tl.int64) * size
    y_own = y_ptr + group.to(tl.int64) * size
    x = tl.load(x_own + at, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    column = tl.sum(x, axis=0)  # within each thread: all threads meet once for both tiles
    if REST:
        x_2 = tl.load(x_own + at_2, mask=inside_2, other=0.0, eviction_policy="evict_last").to(tl.float32)
        column += tl.sum(x_2, axis=0)
    mean = tl.sum(column, axis=0) / size
    off = tl.where(inside, x - mean, 0.0)
    column = tl.sum(off * off, axis=0)
    if REST:
        off_2 = tl.where(inside_2, x_2 - mean, 0.0)
        column += tl.sum(off_2 * off_2, axis=0)
    scale = tl.rsqrt(tl.sum(column, axis=0) / size + eps)
    first = group % groups * CHANNELS
    weight, bias = scale_and_shift(weight_ptr, bias_ptr, first, channel, CHANNELS)
    tl.store(y_own + at, off * (weight * scale) + bias, mask=inside)
    if REST:
        weight, bias = scale_and_shift(weight_ptr, bias_ptr, first, channel_2, CHANNELS)
        tl.store(y_own + at_2, off_2 * (weight * scale) + bias, mask=inside_2)


@triton.jit
def moments(x_ptr, size, BLOCK: tl.constexpr):
    """Mean and mean squared distance from it of `size` elements."""
    lane = tl.arange(0, BLOCK)
    mean = tl.zeros([BLOCK], tl.float32)
    square = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, size, BLOCK):
        inside = start + lane < size
        x = tl.load(x_ptr + start + lane, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
        off = tl.where(inside, x - mean, 0.0)
        mean += off * (1.0 / (start // BLOCK + 1).to(tl.float32))
        square += off * (x - mean)
    count = ((size - lane + BLOCK - 1) // BLOCK).to(tl.float32)  # of elements that a lane has seen; 0 for none
    whole = tl.sum(mean * count, axis=0) / size
    apart = mean - whole
    return whole, (tl.sum(square, axis=0) + tl.sum(count * apart * apart, axis=0)) / size


@triton.jit
def walk_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, total, groups, channels, pixels, eps: tl.constexpr,
    BLOCK: tl.constexpr, CHANNELS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    size = channels * pixels
    wide = tl.cdiv(pixels, PIXELS)
    for group in tl.range(tl.program_id(0), total, tl.num_programs(0)):
        x_own = x_ptr + group.to(tl.int64) * size
        y_own = y_ptr + group.to(tl.int64) * size
        mean, variance = moments(x_own, size, BLOCK)
        scale = tl.rsqrt(variance + eps)
        for step in tl.range(0, tl.cdiv(channels, CHANNELS) * wide):
            channel = step // wide * CHANNELS + tl.arange(0, CHANNELS)
            pixel = step % wide * PIXELS + tl.arange(0, PIXELS)[None, :]
            at = channel[:, None] * pixels + pixel
            inside = (channel[:, None] < channels) & (pixel < pixels)
            x = tl.load(x_own + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
            weight, bias = scale_and_shift(weight_ptr, bias_ptr, group % groups * channels, channel, channels)
            tl.store(y_own + at, (x - mean) * (weight * scale) + bias, mask=inside, eviction_policy="evict_first")


def group_norm(x, groups, weight, bias, eps):
    x = x.contiguous()
    y = torch.empty_like(x)
    batch, channels = x.shape[0], x.shape[1] // groups
    pixels = x.numel() // (batch * x.shape[1])
    total = batch * groups
    high = triton.next_power_of_2(channels + 1) // 2  # the largest power of two that is not above
    rest = triton.next_power_of_2(channels - high) if channels > high else 0
    wide = triton.next_power_of_2(pixels)
    held = (high + rest) * wide
    if held <= HELD:
        warps = min(32, max(4, triton.next_power_of_2(held) // 2048))
        held_kernel[(total,)](
            x, weight, bias, y, groups, eps, CHANNELS=channels, PIXELS=pixels,
            HIGH=high, REST=rest, WIDE=wide, num_warps=warps,
        )  # fmt: skip
        return y
    block = min(BLOCK, triton.next_power_of_2(channels * pixels))
    wide = min(block, wide)
    programs = PROGRAMS_PER_SM * torch.cuda.get_device_properties(x.device).multi_processor_count
    walk_kernel[(min(programs, total),)](
        x, weight, bias, y, total, groups, channels, pixels, eps,
        BLOCK=block, CHANNELS=block // wide, PIXELS=wide, num_warps=NUM_WARPS,
    )  # fmt: skip
    return y
