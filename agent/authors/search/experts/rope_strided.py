# says: queries and keys where they lie, halves side by side in registers, tables read once for several heads
# fits: rope_tokens(q, k, cos, sin) = (torch.cat((q.chunk(2, dim=-1)[0] * cos - q.chunk(2, dim=-1)[1] * sin, q.chunk(2, dim=-1)[1] * cos + q.chunk(2, dim=-1)[0] * sin), dim=-1), torch.cat((k.chunk(2, dim=-1)[0] * cos - k.chunk(2, dim=-1)[1] * sin, k.chunk(2, dim=-1)[1] * cos + k.chunk(2, dim=-1)[0] * sin), dim=-1)) where q: B S H D, k: B S G D, cos: S 1 E, sin: S 1 E
# fits: rope_token(q, cos, sin) = torch.cat((q.chunk(2, dim=-1)[0] * cos - q.chunk(2, dim=-1)[1] * sin, q.chunk(2, dim=-1)[1] * cos + q.chunk(2, dim=-1)[0] * sin), dim=-1) where q: B S H D, cos: S 1 E, sin: S 1 E
# fits: rope_one(q, cos, sin) = torch.cat((q.chunk(2, dim=-1)[0] * cos - q.chunk(2, dim=-1)[1] * sin, q.chunk(2, dim=-1)[1] * cos + q.chunk(2, dim=-1)[0] * sin), dim=-1) where q: B H S D, cos: S E, sin: S E
# fits: rope(q, k, cos, sin) = (q * cos.unsqueeze(1) + torch.cat((-q[..., q.shape[-1] // 2:], q[..., :q.shape[-1] // 2]), dim=-1) * sin.unsqueeze(1), k * cos.unsqueeze(1) + torch.cat((-k[..., k.shape[-1] // 2:], k[..., :k.shape[-1] // 2]), dim=-1) * sin.unsqueeze(1)) where q: B H S D, k: B G S D, cos: B S D, sin: B S D
# fits: rope(q, k, cos, sin) = (q * cos.unsqueeze(1) + torch.cat((-q[..., q.shape[-1] // 2:], q[..., :q.shape[-1] // 2]), dim=-1) * sin.unsqueeze(1), k * cos.unsqueeze(1) + torch.cat((-k[..., k.shape[-1] // 2:], k[..., :k.shape[-1] // 2]), dim=-1) * sin.unsqueeze(1)) where q: B H S D, k: B G S D, cos: 1 S D, sin: 1 S D
# fits: rope_one(q, cos, sin) = q * cos.unsqueeze(1) + torch.cat((-q[..., q.shape[-1] // 2:], q[..., :q.shape[-1] // 2]), dim=-1) * sin.unsqueeze(1) where q: B H S D, cos: B S D, sin: B S D
# gradients: q, k = rope_tokens_backward(gradient_0, gradient_1, q, k, cos, sin) of (torch.cat((q.chunk(2, dim=-1)[0] * cos - q.chunk(2, dim=-1)[1] * sin, q.chunk(2, dim=-1)[1] * cos + q.chunk(2, dim=-1)[0] * sin), dim=-1), torch.cat((k.chunk(2, dim=-1)[0] * cos - k.chunk(2, dim=-1)[1] * sin, k.chunk(2, dim=-1)[1] * cos + k.chunk(2, dim=-1)[0] * sin), dim=-1)) where q: B S H D, k: B S G D, cos: S 1 E, sin: S 1 E
# gradients: q = rope_token_backward(gradient, q, cos, sin) of torch.cat((q.chunk(2, dim=-1)[0] * cos - q.chunk(2, dim=-1)[1] * sin, q.chunk(2, dim=-1)[1] * cos + q.chunk(2, dim=-1)[0] * sin), dim=-1) where q: B S H D, cos: S 1 E, sin: S 1 E
# gradients: q = rope_one_backward(gradient, q, cos, sin) of torch.cat((q.chunk(2, dim=-1)[0] * cos - q.chunk(2, dim=-1)[1] * sin, q.chunk(2, dim=-1)[1] * cos + q.chunk(2, dim=-1)[0] * sin), dim=-1) where q: B H S D, cos: S E, sin: S E
# search: HEADS = 1 2 4
# search: TOKENS = 16 32 64
# search: NUM_WARPS = 4 8 16
"""Rotary embedding where queries and keys lie: [batch, heads, sequence, head_dim] or with heads behind the sequence,
with fewer heads of keys or no keys, and tables of half a head, or of a whole one as Hugging Face has them, which may
differ in the batch. Its gradients are the same turned the other way; those of tables are none of its results.

A program has some positions of one batch and some heads: the tables' rows for those positions are loaded once. The
loads of a head come before its stores, because a load cannot pass a store that might be to the same place.
"""

HEADS = 4
TOKENS = 32
NUM_WARPS = 8


@triton.jit
def turned_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, q_heads, k_heads, sequence, half,
    q_batch, q_head, q_token, k_batch, k_head, k_token,
    q_out_batch, q_out_head, q_out_token, k_out_batch, k_out_head, k_out_token, table_batch, table_token,
    WHOLE: tl.constexpr, BACK: tl.constexpr, TOKENS: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS))[:, None]
    d = tl.arange(0, HALF)[None, :]
    inside = (token < sequence) & (d < half)
    token = token.to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    at = batch * table_batch + token * table_token + d
    cos_low = tl.load(cos_ptr + at, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    sin_low = tl.load(sin_ptr + at, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    cos_high = cos_low
    sin_high = sin_low
    if WHOLE:
        cos_high = tl.load(cos_ptr + at + half, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
        sin_high = tl.load(sin_ptr + at + half, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    if BACK:
        kept = sin_low
        sin_low = -sin_high
        sin_high = -kept
    for i in tl.static_range(HEADS):
        head = tl.program_id(1).to(tl.int64) * HEADS + i
        q_at = batch * q_batch + head * q_head + token * q_token + d
        k_at = batch * k_batch + head * k_head + token * k_token + d
        q_own = inside & (head < q_heads)
        k_own = inside & (head < k_heads)
        q_low = tl.load(q_ptr + q_at, mask=q_own, other=0.0, eviction_policy="evict_last").to(tl.float32)
        q_high = tl.load(q_ptr + q_at + half, mask=q_own, other=0.0, eviction_policy="evict_last").to(tl.float32)
        k_low = tl.load(k_ptr + k_at, mask=k_own, other=0.0, eviction_policy="evict_last").to(tl.float32)
        k_high = tl.load(k_ptr + k_at + half, mask=k_own, other=0.0, eviction_policy="evict_last").to(tl.float32)
        q_to = batch * q_out_batch + head * q_out_head + token * q_out_token + d
        k_to = batch * k_out_batch + head * k_out_head + token * k_out_token + d
        tl.store(q_out_ptr + q_to, q_low * cos_low - q_high * sin_low, mask=q_own)
        tl.store(q_out_ptr + q_to + half, q_high * cos_high + q_low * sin_high, mask=q_own)
        tl.store(k_out_ptr + k_to, k_low * cos_low - k_high * sin_low, mask=k_own)
        tl.store(k_out_ptr + k_to + half, k_high * cos_high + k_low * sin_high, mask=k_own)


def rope(q, k, cos, sin, heads=1, back=False):
    """Both turned, or queries alone where there are no keys; `heads`: the dimension where the heads are."""
    q = q if q.stride(-1) == 1 else q.contiguous()
    k_heads = 0 if k is None else k.shape[heads]
    k = q if k is None else k if k.stride(-1) == 1 else k.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    q_out = torch.empty_like(q)
    k_out = torch.empty_like(k) if k_heads else q_out
    tokens = 3 - heads
    sequence, depth = q.shape[tokens], q.shape[3]
    wide, whole = triton.next_power_of_2(depth // 2), cos.shape[-1] == depth
    grid = (triton.cdiv(sequence, TOKENS), triton.cdiv(max(q.shape[heads], k_heads), HEADS), q.shape[0])
    turned_kernel[grid](
        q, k, cos, sin, q_out, k_out, q.shape[heads], k_heads, sequence, depth // 2,
        q.stride(0), q.stride(heads), q.stride(tokens), k.stride(0), k.stride(heads), k.stride(tokens),
        q_out.stride(0), q_out.stride(heads), q_out.stride(tokens),
        k_out.stride(0), k_out.stride(heads), k_out.stride(tokens),
        sequence * depth if whole and cos.shape[0] > 1 else 0, cos.shape[-1],
        WHOLE=whole, BACK=back, TOKENS=TOKENS, HALF=wide, HEADS=HEADS,
        num_warps=max(NUM_WARPS, min(32, TOKENS * wide // 512)),  # at most 16 elements a thread, of six numbers each
    )  # fmt: skip
    return q_out, k_out


def rope_one(q, cos, sin, heads=1, back=False):
    return rope(q, None, cos, sin, heads, back)[0]


def rope_tokens(q, k, cos, sin):
    return rope(q, k, cos, sin, 2)


def rope_token(q, cos, sin):
    return rope_one(q, cos, sin, 2)


def rope_tokens_backward(dq_out, dk_out, q, k, cos, sin):
    return rope(dq_out, dk_out, cos, sin, 2, True)


def rope_token_backward(dq_out, q, cos, sin):
    return rope_one(dq_out, cos, sin, 2, True)


def rope_one_backward(dq_out, q, cos, sin):
    return rope_one(dq_out, cos, sin, 1, True)
