# says: halves side by side in registers, tables read once for several heads, all loads of a head before its stores
# fits: rope(q, k, cos, sin) = (torch.cat((q.chunk(2, dim=-1)[0] * cos - q.chunk(2, dim=-1)[1] * sin, q.chunk(2, dim=-1)[1] * cos + q.chunk(2, dim=-1)[0] * sin), dim=-1), torch.cat((k.chunk(2, dim=-1)[0] * cos - k.chunk(2, dim=-1)[1] * sin, k.chunk(2, dim=-1)[1] * cos + k.chunk(2, dim=-1)[0] * sin), dim=-1)) where q: B H S D, k: B H S D, cos: S E, sin: S E
# search: HEADS = 1 2 4
# search: TOKENS = 16 32 64
# search: NUM_WARPS = 4 8 16
"""Rotary embedding of queries and keys in one launch. A program has some positions and some heads: the tables' rows
for those positions are loaded once and used for HEADS heads of queries and of keys.

32 positions of a half of 64 bfloat16 by 8 warps are one 16-byte access a thread for each half. The four halves of a
query and its key are loaded before the first is stored, because a load cannot pass a store that might be to the same
place. On an H200 that takes 130.5 us for four heads a program, 130.8 for two, as with 16 positions by 4 warps and two
heads; 133.8 for four heads so, 135.1 for eight; 147 in TorchInductor's kernels. What is read leaves the L2 last: 1.2 %
more without.
"""

HEADS = 4
TOKENS = 32
NUM_WARPS = 8


@triton.jit
def rope_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, heads, sequence, half,
    TOKENS: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS))[:, None]
    d = tl.arange(0, HALF)[None, :]
    inside = (token < sequence) & (d < half)
    cos = tl.load(cos_ptr + token * half + d, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    sin = tl.load(sin_ptr + token * half + d, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    for i in tl.static_range(HEADS):
        head = tl.program_id(1).to(tl.int64) * HEADS + i
        low = (head * sequence + token) * 2 * half + d
        high = low + half
        own = inside & (head < heads)
        q_low = tl.load(q_ptr + low, mask=own, other=0.0, eviction_policy="evict_last").to(tl.float32)
        q_high = tl.load(q_ptr + high, mask=own, other=0.0, eviction_policy="evict_last").to(tl.float32)
        k_low = tl.load(k_ptr + low, mask=own, other=0.0, eviction_policy="evict_last").to(tl.float32)
        k_high = tl.load(k_ptr + high, mask=own, other=0.0, eviction_policy="evict_last").to(tl.float32)
        tl.store(q_out_ptr + low, q_low * cos - q_high * sin, mask=own)
        tl.store(q_out_ptr + high, q_high * cos + q_low * sin, mask=own)
        tl.store(k_out_ptr + low, k_low * cos - k_high * sin, mask=own)
        tl.store(k_out_ptr + high, k_high * cos + k_low * sin, mask=own)


def rope(q, k, cos, sin):
    q, k, cos, sin = q.contiguous(), k.contiguous(), cos.contiguous(), sin.contiguous()
    batch, heads, sequence, depth = q.shape
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    grid = (triton.cdiv(sequence, TOKENS), triton.cdiv(batch * heads, HEADS))
    wide = triton.next_power_of_2(depth // 2)
    warps = max(NUM_WARPS, min(32, TOKENS * wide // 512))  # at most 16 elements a thread, of six numbers each
    rope_kernel[grid](
        q, k, cos, sin, q_out, k_out, batch * heads, sequence, depth // 2,
        TOKENS=TOKENS, HALF=wide, HEADS=HEADS,
        num_warps=warps,
    )  # fmt: skip
    return q_out, k_out
