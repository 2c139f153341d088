# says: convolution as one product over channels and the places of the window; nothing is unfolded in memory
# fits: conv(x, layer, PRECISION) = Conv1d(x, layer) where x: B C W
# fits: conv(x, layer, PRECISION) = Conv2d(x, layer) where x: B C H W
# fits: conv(x, layer, PRECISION) = Conv3d(x, layer) where x: B C D H W
# fits: conv(x, layer, PRECISION) = ConvTranspose1d(x, layer) where x: B C W
# fits: conv(x, layer, PRECISION) = ConvTranspose2d(x, layer) where x: B C H W
# fits: conv(x, layer, PRECISION) = ConvTranspose3d(x, layer) where x: B C D H W
# search: BLOCK_M = 32 64 128
# search: BLOCK_N = 64 128 256
# search: BLOCK_K = 16 32 64
# search: IEEE = 0 1
# search: NUM_WARPS = 4 8
# search: NUM_STAGES = 2 3 4
"""Convolutions of one to three dimensions, transposed ones too, as implicit matrix products.

The sum runs over channels and, for each, the places of the window: in that order weights lie side by side in memory,
and few channels fill a block as well as many. A convolution meets x[o * stride - padding + w * dilation]; a transposed
one, asked for what reaches an output, x[(o + padding - w * dilation) / stride] where that division leaves nothing.
Reads of neighbouring places overlap, so all but the first come from the caches. Groups have products of their own.

Float32 is multiplied as it is: three products of TF32 parts are as exact, but the parts are made in registers and go to
the tensor cores through shared memory. On an H200, with a step of the sum for each place of the window (before this
order), 32 x 64 x 131072 by 128 filters of 3 took 7.9 ms as it is and 13.9 ms as three (cuDNN 5.5). A thread should have
many products of what it reads: KernelBench's level1/59 takes 4.1 ms with 128 x 128 by 4 warps, 5.7 ms with 64 x 128 by
8, 7.9 ms with 32 x 64 by 8 (cuDNN 2.7); its level1/70 64.6 and 116.0 ms (cuDNN 38.9).
"""

BLOCK_M = 128  # output channels
BLOCK_N = 128  # places
BLOCK_K = 16  # input channels and places of the window
IEEE = 1  # whether float32 is multiplied as it is
NUM_WARPS = 4
NUM_STAGES = 3


@triton.jit
def met(place, w, size, STRIDE: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Where along one dimension a place meets the window's step w, and whether there is anything."""
    if TRANSPOSED:
        reached = place + PADDING - w * DILATION
        at = reached // STRIDE
        inside = (reached >= 0) & (reached % STRIDE == 0) & (at < size)
    else:
        at = place * STRIDE - PADDING + w * DILATION
        inside = (at >= 0) & (at < size)
    return at, inside


@triton.jit
def conv_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, inner, each, depth, height, width, depths, heights, widths,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    GROUPS: tl.constexpr, BIAS: tl.constexpr, TRANSPOSED: tl.constexpr, INPUT_PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    places = depths * heights * widths
    tiles = tl.cdiv(places, BN)
    image = (tl.program_id(0) // tiles).to(tl.int64)  # a group of a sample: its channels lie together, in x and in y
    group = (image % GROUPS).to(tl.int32)
    o = tl.program_id(1) * BM + tl.arange(0, BM)
    place = tl.program_id(0) % tiles * BN + tl.arange(0, BN)
    inside_y = (place < places)[None, :]
    column, row = (place % widths)[None, :], (place // widths % heights)[None, :]
    slab = (place // (widths * heights))[None, :]
    own = group * each + o  # the output channel among all
    volume = depth * height * width
    WINDOW: tl.constexpr = KD * KH * KW
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, inner * WINDOW, BK):
        t = start + tl.arange(0, BK)
        c, w = t // WINDOW, (t % WINDOW)[:, None]
        z, z_inside = met(slab, w // (KH * KW), depth, SD, PD, DD, TRANSPOSED)
        v, v_inside = met(row, w // KW % KH, height, SH, PH, DH, TRANSPOSED)
        u, u_inside = met(column, w % KW, width, SW, PW, DW, TRANSPOSED)
        if TRANSPOSED:
            weight_at = ((group * inner + c[None, :]) * each + o[:, None]) * WINDOW + t[None, :] % WINDOW
        else:
            weight_at = own[:, None] * inner * WINDOW + t[None, :]
        p = tl.load(weight_ptr + weight_at, mask=(o[:, None] < each) & (c[None, :] < inner), other=0.0)
        inside = (c[:, None] < inner) & z_inside & v_inside & u_inside & inside_y
        q = tl.load(x_ptr + image * inner * volume + c[:, None] * volume + (z * height + v) * width + u, inside, 0.0)
        acc = tl.dot(p, q, acc, input_precision=INPUT_PRECISION)
    if BIAS:
        acc += tl.load(bias_ptr + own, mask=o < each, other=0.0).to(tl.float32)[:, None]
    y_at = (image * each + o[:, None]) * places + place[None, :]
    tl.store(y_ptr + y_at, acc.to(y_ptr.dtype.element_ty), mask=(o[:, None] < each) & inside_y)


def filled(values, one):
    """Three numbers, the first of which are those of the dimensions that there are not."""
    return (one,) * (3 - len(values)) + tuple(values)


def conv(x, layer, precision):
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise NotImplementedError("padding with zeros only, as many as a number says")
    x, weight, groups, transposed = x.contiguous(), layer.weight, layer.groups, layer.transposed
    inner = weight.shape[0] // groups if transposed else weight.shape[1]
    each = weight.shape[1] if transposed else weight.shape[0] // groups
    window, stride, dilation = filled(weight.shape[2:], 1), filled(layer.stride, 1), filled(layer.dilation, 1)
    padding, more = filled(layer.padding, 0), filled(layer.output_padding, 0)
    sizes, reach = filled(x.shape[2:], 1), [d * (k - 1) for d, k in zip(dilation, window)]
    if transposed:
        out = [(n - 1) * s - 2 * p + r + m + 1 for n, s, p, r, m in zip(sizes, stride, padding, reach, more)]
    else:
        out = [(n + 2 * p - r - 1) // s + 1 for n, s, p, r in zip(sizes, stride, padding, reach)]
    places = out[0] * out[1] * out[2]
    if inner * sizes[0] * sizes[1] * sizes[2] >= 2**31 or weight.numel() >= 2**31:
        raise NotImplementedError("addresses within an image and within the weights have 32 bits")
    y = torch.empty((x.shape[0], each * groups, *out[5 - x.dim():]), dtype=x.dtype, device=x.device)  # fmt: skip
    bm = min(BLOCK_M, max(16, triton.next_power_of_2(each)))
    bn = min(BLOCK_N, max(16, triton.next_power_of_2(places)))
    exact = "ieee" if IEEE else "tf32x3"
    grid = (triton.cdiv(places, bn) * x.shape[0] * groups, triton.cdiv(each, bm))
    conv_kernel[grid](
        x, weight, layer.bias, y, inner, each, *sizes, *out, *window, *stride, *padding, *dilation,
        GROUPS=groups, BIAS=layer.bias is not None, TRANSPOSED=transposed,
        INPUT_PRECISION="tf32" if precision == "tf32_ok" else exact, BM=bm, BN=bn, BK=BLOCK_K,
        num_warps=NUM_WARPS, num_stages=NUM_STAGES,
    )  # fmt: skip
    return y
