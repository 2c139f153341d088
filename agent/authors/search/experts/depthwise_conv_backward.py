# says: a channel a program: gradients of weight and bias stay in registers while that of x is written
# task: causal_conv1d_backward_task = conv_backward(gradient, x, self.forward_model.weight, self.forward_model.bias)
# search: BLOCK = 1024 2048
# search: NUM_WARPS = 2 4 8
"""Backward of the causal depthwise convolution with bias and SiLU. With s the sums before SiLU and ds = dy silu'(s),
dx is the mirrored convolution of ds, which reaches forwards, and the weights' gradients are sums of ds times shifted x.

A program has a channel, of all batches, so that its sums over batch and time are results: no second kernel, no atomics.
As in the forward, a thread loads its piece of x and the one before; here the piece behind as well, whose first ds
it computes for itself from that of dy. So x and dy are read once from memory, and the pieces beside from the L1 cache.
"""

BLOCK = 2048  # places a step
NUM_WARPS = 4


@triton.jit
def four(x, PIECES: tl.constexpr):
    """The columns of (PIECES, 4)."""
    even, odd = tl.split(tl.reshape(x, (PIECES, 2, 2)))
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    return x0, x1, x2, x3


@triton.jit
def apart(x, PIECES: tl.constexpr, VEC: tl.constexpr):
    """The columns of (PIECES, VEC)."""
    if VEC == 4:
        return four(x, PIECES)
    else:  # noqa: RET505 - Triton compiles what follows a return
        even, odd = tl.split(tl.reshape(x, (PIECES, 4, 2)))
        x0, x2, x4, x6 = four(even, PIECES)
        x1, x3, x5, x7 = four(odd, PIECES)
        return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def together(y, PIECES: tl.constexpr, VEC: tl.constexpr):
    """(PIECES, VEC) of its columns."""
    if VEC == 4:
        return tl.reshape(tl.join(tl.join(y[0], y[2]), tl.join(y[1], y[3])), (PIECES, VEC))
    else:  # noqa: RET505
        even = tl.join(tl.join(y[0], y[4]), tl.join(y[2], y[6]))
        odd = tl.join(tl.join(y[1], y[5]), tl.join(y[3], y[7]))
        return tl.reshape(tl.join(even, odd), (PIECES, VEC))


@triton.jit
def weighed(columns, weight, first: tl.constexpr, step: tl.constexpr, WIDTH: tl.constexpr):
    """The sum of WIDTH columns, every `step`-th from the first."""
    total = columns[first].to(tl.float32) * weight[0]
    for w in tl.static_range(1, WIDTH):
        total += columns[first + step * w].to(tl.float32) * weight[w]
    return total


@triton.jit
def conv_backward_kernel(
    dy_ptr, x_ptr, weight_ptr, bias_ptr, dx_ptr, dweight_ptr, dbias_ptr, batch, channels, sequence,
    WIDTH: tl.constexpr, PIECES: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0)
    bias = tl.load(bias_ptr + channel).to(tl.float32)
    weight = ()
    dweight = ()
    for w in tl.static_range(WIDTH):
        weight = weight + (tl.load(weight_ptr + channel * WIDTH + w).to(tl.float32),)  # noqa: RUF005
        dweight = dweight + (tl.zeros([PIECES], tl.float32),)  # noqa: RUF005
    dbias = tl.zeros([PIECES], tl.float32)
    place = tl.arange(0, PIECES)[:, None] * VEC + tl.arange(0, VEC)[None, :]
    for row in range(batch):
        start = (row.to(tl.int64) * channels + channel) * sequence
        for first in range(0, sequence, PIECES * VEC):
            t = first + place
            before = tl.load(x_ptr + start + t - VEC, mask=(t >= VEC) & (t - VEC < sequence), other=0.0)
            x = tl.load(x_ptr + start + t, mask=t < sequence, other=0.0)
            behind = tl.load(x_ptr + start + t + VEC, mask=t + VEC < sequence, other=0.0)
            dy = tl.load(dy_ptr + start + t, mask=t < sequence, other=0.0)
            dy_behind = tl.load(dy_ptr + start + t + VEC, mask=t + VEC < sequence, other=0.0)
            known = apart(before, PIECES, VEC) + apart(x, PIECES, VEC) + apart(behind, PIECES, VEC)
            told = apart(dy, PIECES, VEC) + apart(dy_behind, PIECES, VEC)
            ds = ()
            for j in tl.static_range(VEC + WIDTH - 1):
                s = weighed(known, weight, VEC + j - WIDTH + 1, 1, WIDTH) + bias
                gate = 1.0 / (1.0 + tl.exp2(s * -1.4426950408889634))
                ds = ds + (told[j].to(tl.float32) * gate * (1.0 + s * (1.0 - gate)),)  # noqa: RUF005
            dx = ()
            for j in tl.static_range(VEC):
                dx = dx + (weighed(ds, weight, j + WIDTH - 1, -1, WIDTH).to(dx_ptr.dtype.element_ty),)  # noqa: RUF005
                dbias += ds[j]
            tl.store(dx_ptr + start + t, together(dx, PIECES, VEC), mask=t < sequence)
            sums = ()
            for w in tl.static_range(WIDTH):
                total = dweight[w]
                for j in tl.static_range(VEC):
                    total += ds[j] * known[VEC + j - WIDTH + 1 + w].to(tl.float32)
                sums = sums + (total,)  # noqa: RUF005
            dweight = sums
    for w in tl.static_range(WIDTH):
        tl.store(dweight_ptr + channel * WIDTH + w, tl.sum(dweight[w], axis=0))
    tl.store(dbias_ptr + channel, tl.sum(dbias, axis=0))


def conv_backward(gradient, x, weight, bias):
    gradient, x = gradient.contiguous(), x.contiguous()
    batch, channels, sequence = x.shape
    dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
    vec = 8 if x.element_size() == 2 else 4
    if weight.shape[1] > vec + 1:
        raise NotImplementedError("a window that reaches no further than the piece before")
    block = max(256, min(BLOCK, triton.next_power_of_2(sequence)))  # a piece a thread, at least
    conv_backward_kernel[(channels,)](
        gradient, x, weight, bias, dx, dweight, dbias, batch, channels, sequence,
        WIDTH=weight.shape[1], PIECES=block // vec, VEC=vec, num_warps=min(NUM_WARPS, block // vec // 32),
    )  # fmt: skip
    return dx, dweight, dbias
