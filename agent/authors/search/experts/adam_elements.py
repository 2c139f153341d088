# says: all four operands read and three results written once, constants folded on the host in float64
# task: adam_step = adam(weight, gradient, first, second, self.step, self.rate, self.decay, self.eps, self.beta1, self.beta2)
# search: ACCESSES = 1 2
# search: NUM_WARPS = 4 8 16 32
"""One AdamW step, element by element: seven streams of memory.

Four loads a thread are 64 kB or more under way on each multiprocessor, whatever the number of warps a program: on an
H200, 203.4 us with two 16-byte accesses of each stream a thread and 8 warps, 203.5-204.0 with one and 4 to 32. What
is read leaves the L2 last: 207.3 without. Corrections for the first steps are the host's: it divides by 1 - beta^step
once, in double precision.
"""

ACCESSES = 2  # of 16 bytes, a thread
NUM_WARPS = 8


@triton.jit
def adam_kernel(
    w_ptr, g_ptr, m_ptr, v_ptr, w_out_ptr, m_out_ptr, v_out_ptr, size,
    kept, rate, eps, mean_scale, square_scale, beta1, beta2, rest1, rest2, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    g = tl.load(g_ptr + at, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    w = tl.load(w_ptr + at, mask=inside, other=0.0, eviction_policy="evict_last")
    m = tl.load(m_ptr + at, mask=inside, other=0.0, eviction_policy="evict_last")
    v = tl.load(v_ptr + at, mask=inside, other=0.0, eviction_policy="evict_last")
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    step = rate * (m * mean_scale) / (tl.sqrt_rn(v * square_scale) + eps)
    tl.store(w_out_ptr + at, w * kept - step, mask=inside)
    tl.store(m_out_ptr + at, m, mask=inside)
    tl.store(v_out_ptr + at, v, mask=inside)


def adam(weight, gradient, first, second, step, rate, decay, eps, beta1, beta2):
    w, m, v = torch.empty_like(weight), torch.empty_like(first), torch.empty_like(second)
    size = weight.numel()
    block = NUM_WARPS * 32 * ACCESSES * 16 // weight.element_size()
    adam_kernel[(triton.cdiv(size, block),)](
        weight, gradient, first, second, w, m, v, size,
        1 - rate * decay, rate, eps, 1 / (1 - beta1**step), 1 / (1 - beta2**step), beta1, beta2, 1 - beta1, 1 - beta2,
        BLOCK=block, num_warps=NUM_WARPS,
    )  # fmt: skip
    return w, m, v
