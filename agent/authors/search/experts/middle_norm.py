# says: normalised over a dimension that is not the last: a program takes neighbouring columns, so every access is along memory
# fits: rms_norm_over_1(x, eps) = x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + eps) where x: B<65536 C H W
# fits: rms_norm_over_1(x, eps) = x * torch.rsqrt(torch.mean(x ** 2, dim=1, keepdim=True) + eps) where x: B<65536 C H W
# search: BLOCK = 16 32 64 128 256
# search: NUM_WARPS = 4 8 16 32
"""RMS normalisation over the channels of images: a program takes BLOCK neighbouring pixels with all their channels.

The tile stays in registers, so x is read once; along the pixels accesses are contiguous although sums run across
them. What is read leaves the L2 last: 2 % in RMS normalisation over rows on an H200; not
timed here.
"""

BLOCK = 64  # pixels a program
NUM_WARPS = 8


@triton.jit
def middle_norm_kernel(x_ptr, y_ptr, channels, pixels, eps: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    channel = tl.arange(0, C)[:, None]
    at = (tl.program_id(1).to(tl.int64) * channels + channel) * pixels + pixel
    inside = (channel < channels) & (pixel < pixels)
    x = tl.load(x_ptr + at, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    root = tl.sqrt_rn(tl.sum(x * x, axis=0) / channels + eps)
    tl.store(y_ptr + at, x / root[None, :], mask=inside)


def rms_norm_over_1(x, eps):
    x = x.contiguous()
    y = torch.empty_like(x)
    batch, channels = x.shape[:2]
    pixels = x.numel() // (batch * channels)
    height = triton.next_power_of_2(channels)
    block = max(1, min(BLOCK, 32768 // height))  # a tile must fit the registers
    warps = max(NUM_WARPS, min(32, height * block // 2048))  # at most 64 elements of a tile a thread
    middle_norm_kernel[(triton.cdiv(pixels, block), batch)](
        x, y, channels, pixels, eps, C=height, BLOCK=block, num_warps=warps
    )
    return y
