# says: a tile of a plane a program, the windows' elements from the L1 cache
# fits: average_pool(x, layer) = AvgPool3d(x, layer) where x: B C D H W
# fits: max_pool(x, layer) = MaxPool3d(x, layer) where x: B C D H W
# search: BLOCK_H = 4 8 16
# search: BLOCK_W = 32 64 128
# search: NUM_WARPS = 4 8
"""Pooling in three dimensions, a tile of rows and columns of one output plane a program.

Neighbouring outputs share what overlaps of their windows; it is read again from the L1 cache. Elements in the padding
are not read. Sums are in float32; the largest of a window with a NaN is NaN.
"""

BLOCK_H = 8
BLOCK_W = 64
NUM_WARPS = 4


@triton.jit
def pool_kernel(
    x_ptr, y_ptr, depth, height, width, out_depth, out_height, out_width, divisor,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    MOST: tl.constexpr, COUNT: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    wide = tl.cdiv(out_width, BW)
    plane = tl.program_id(0).to(tl.int64)  # of the output: a channel of a batch, and a depth
    i = (tl.program_id(1) // wide) * BH + tl.arange(0, BH)
    j = (tl.program_id(1) % wide) * BW + tl.arange(0, BW)
    channel, z = plane // out_depth, plane % out_depth
    none: tl.constexpr = float("-inf") if MOST else 0.0
    total = tl.full((BH, BW), none, tl.float32)
    found = tl.zeros((BH, BW), tl.float32)
    for d in tl.static_range(KD):
        at = z * SD - PD + d * DD
        below = x_ptr + (channel * depth + at) * height * width
        for h in tl.static_range(KH):
            row = i * SH - PH + h * DH
            for w in tl.static_range(KW):
                column = j * SW - PW + w * DW
                inside = (row >= 0) & (row < height)
                there = inside[:, None] & ((column >= 0) & (column < width))[None, :] & (at >= 0) & (at < depth)
                v = tl.load(below + row[:, None] * width + column[None, :], mask=there, other=none).to(tl.float32)
                if MOST:
                    total = tl.maximum(total, v, propagate_nan=tl.PropagateNan.ALL)
                else:
                    total += v
                if COUNT:
                    found += there.to(tl.float32)
    if not MOST:
        total = total / found if COUNT else total / divisor
    y = y_ptr + plane * out_height * out_width + i[:, None] * out_width + j[None, :]
    tl.store(y, total.to(y_ptr.dtype.element_ty), mask=(i < out_height)[:, None] & (j < out_width)[None, :])


def three(v):
    return (v, v, v) if isinstance(v, int) else tuple(v)


def pool(x, layer, dilation, most, divisor, count):
    if layer.ceil_mode:
        raise NotImplementedError("windows that reach beyond the padding")
    x = x.contiguous()
    batch, channels, *sizes = x.shape
    windows, strides, paddings = three(layer.kernel_size), three(layer.stride), three(layer.padding)
    out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(sizes, windows, strides, paddings, dilation)]
    y = torch.empty((batch, channels, *out), dtype=x.dtype, device=x.device)
    bw = min(BLOCK_W, triton.next_power_of_2(out[2]))
    bh = min(BLOCK_H, triton.next_power_of_2(out[1]))
    grid = (batch * channels * out[0], triton.cdiv(out[1], bh) * triton.cdiv(out[2], bw))
    pool_kernel[grid](
        x, y, *sizes, *out, float(divisor or windows[0] * windows[1] * windows[2]), *windows, *strides, *paddings,
        *dilation, MOST=most, COUNT=count, BH=bh, BW=bw, num_warps=NUM_WARPS,
    )  # fmt: skip
    return y


def average_pool(x, layer):
    divisor = layer.divisor_override
    return pool(x, layer, (1, 1, 1), False, divisor, not layer.count_include_pad and not divisor)


def max_pool(x, layer):
    if layer.return_indices:
        raise NotImplementedError("indices")
    return pool(x, layer, three(layer.dilation), True, None, False)
