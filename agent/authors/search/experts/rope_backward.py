# says: the inverse rotation, and the tables' gradients summed in registers meanwhile, by a fixed grid, then over its programs
# gradients: q, k, cos, sin = rope_backward(gradient_0, gradient_1, q, k, cos, sin) of (torch.cat((q.chunk(2, dim=-1)[0] * cos - q.chunk(2, dim=-1)[1] * sin, q.chunk(2, dim=-1)[1] * cos + q.chunk(2, dim=-1)[0] * sin), dim=-1), torch.cat((k.chunk(2, dim=-1)[0] * cos - k.chunk(2, dim=-1)[1] * sin, k.chunk(2, dim=-1)[1] * cos + k.chunk(2, dim=-1)[0] * sin), dim=-1)) where q: B H S D, k: B H S D, cos: S E, sin: S E
# search: TOKENS = 8 16 32 64
# search: PROGRAMS_PER_SM = 2 4 8
# search: NUM_STAGES = 1 2 3
"""Backward of the rotary embedding of queries and keys. Their gradients are those of the outputs turned back; the
tables' gradients are sums over batch, heads, queries and keys.

A program has some positions and every so many heads of the batch, and keeps a sum for each entry of its positions'
tables, so that each operand is read once for all results. Where positions alone are programs enough, the sums are the
results; else a second kernel adds those of the programs. No atomics: the result is the same each time.

The next heads travel to shared memory meanwhile. A thread has 8 elements of each half, one 16-byte access of bfloat16.
"""

TOKENS = 16  # positions a program
PROGRAMS_PER_SM = 4
NUM_STAGES = 3
COLUMNS = 1024  # of the second kernel: a program adds that many entries of all parts


@triton.jit
def turned_back_kernel(
    dq_out_ptr, dk_out_ptr, q_ptr, k_ptr, cos_ptr, sin_ptr, dq_ptr, dk_ptr, dcos_ptr, dsin_ptr,
    heads, parts, sequence, half, TOKENS: tl.constexpr, HALF: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS))[:, None]
    d = tl.arange(0, HALF)[None, :]
    inside = (token < sequence) & (d < half)
    cos = tl.load(cos_ptr + token * half + d, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * half + d, mask=inside, other=0.0).to(tl.float32)
    dcos = tl.zeros([TOKENS, HALF], tl.float32)
    dsin = tl.zeros([TOKENS, HALF], tl.float32)
    for head in tl.range(tl.program_id(1), heads, parts, num_stages=STAGES):
        low = (head.to(tl.int64) * sequence + token) * 2 * half + d
        high = low + half
        q_low = tl.load(q_ptr + low, mask=inside, other=0.0).to(tl.float32)
        q_high = tl.load(q_ptr + high, mask=inside, other=0.0).to(tl.float32)
        k_low = tl.load(k_ptr + low, mask=inside, other=0.0).to(tl.float32)
        k_high = tl.load(k_ptr + high, mask=inside, other=0.0).to(tl.float32)
        dq_low = tl.load(dq_out_ptr + low, mask=inside, other=0.0).to(tl.float32)
        dq_high = tl.load(dq_out_ptr + high, mask=inside, other=0.0).to(tl.float32)
        dk_low = tl.load(dk_out_ptr + low, mask=inside, other=0.0).to(tl.float32)
        dk_high = tl.load(dk_out_ptr + high, mask=inside, other=0.0).to(tl.float32)
        tl.store(dq_ptr + low, dq_low * cos + dq_high * sin, mask=inside)
        tl.store(dq_ptr + high, dq_high * cos - dq_low * sin, mask=inside)
        tl.store(dk_ptr + low, dk_low * cos + dk_high * sin, mask=inside)
        tl.store(dk_ptr + high, dk_high * cos - dk_low * sin, mask=inside)
        dcos += dq_low * q_low + dq_high * q_high + dk_low * k_low + dk_high * k_high
        dsin += dq_high * q_low - dq_low * q_high + dk_high * k_low - dk_low * k_high
    at = tl.program_id(1).to(tl.int64) * sequence * half + token * half + d
    tl.store(dcos_ptr + at, dcos, mask=inside)
    tl.store(dsin_ptr + at, dsin, mask=inside)


@triton.jit
def parts_kernel(part_ptr, sum_ptr, parts, size, COLS: tl.constexpr):
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    total = tl.zeros([COLS], tl.float32)
    for part in range(parts):
        total += tl.load(part_ptr + part * size + column, mask=column < size, other=0.0)
    tl.store(sum_ptr + column, total, mask=column < size)


def rope_backward(dq_out, dk_out, q, k, cos, sin):
    dq_out, dk_out, q, k = dq_out.contiguous(), dk_out.contiguous(), q.contiguous(), k.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    batch, heads, sequence, depth = q.shape
    dq, dk, dcos, dsin = torch.empty_like(q), torch.empty_like(k), torch.empty_like(cos), torch.empty_like(sin)
    wide = triton.next_power_of_2(depth // 2)
    tokens = max(1, min(TOKENS, 4096 // wide))  # at most 16 warps of 8 elements a thread: each is twelve numbers
    strips = triton.cdiv(sequence, tokens)
    programs = PROGRAMS_PER_SM * torch.cuda.get_device_properties(q.device).multi_processor_count
    parts = max(1, min(batch * heads, programs // strips))
    sums = [dcos, dsin]
    if parts > 1:
        sums = [torch.empty((parts, *cos.shape), dtype=torch.float32, device=q.device) for _ in sums]
    # as many stages as shared memory has room for
    stages = max(1, min(NUM_STAGES, (192 << 10) // (8 * tokens * wide * q.element_size())))
    turned_back_kernel[(strips, parts)](
        dq_out, dk_out, q, k, cos, sin, dq, dk, *sums, batch * heads, parts, sequence, depth // 2,
        TOKENS=tokens, HALF=wide, STAGES=stages,
        num_warps=max(1, min(16, tokens * wide // 256)),
    )  # fmt: skip
    if parts > 1:
        for part, result in zip(sums, (dcos, dsin)):
            parts_kernel[(triton.cdiv(cos.numel(), COLUMNS),)](
                part, result, parts, cos.numel(), COLS=COLUMNS, num_warps=4
            )
    return dq, dk, dcos, dsin
