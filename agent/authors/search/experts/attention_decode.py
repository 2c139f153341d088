# says: split keys: several programs share one sequence's cache, all query heads of a key head read it together, then a merge
# fits: decode(q, k, v) = F.scaled_dot_product_attention(q, k, v, enable_gqa=True) where q: B H 1 D, k: B G S D, v: B G S D
# fits: decode(q, k, v) = F.scaled_dot_product_attention(q, k, v) where q: B H 1 D, k: B H S D, v: B H S D
# search: BLOCK_N = 32 64 128
# search: PROGRAMS_PER_SM = 1 2 4
# search: NUM_WARPS = 2 4
# search: NUM_STAGES = 2 3 4
"""Attention of one query over a long cache: bound by reading keys and values once.

A program per sequence and key head would leave multiprocessors idle, so each takes a part of the cache, for all query
heads that share it (padded to the 16 rows that a tensor core wants). The second kernel merges the parts, where there
are several. All programs should run at once: they share the memory evenly and end together. 256 caches of 4096 keys
take 123.4 us on an H200 (torch.compile 124.0) with a program each, which needs no merge, and blocks of 64 keys; 128.4
us with blocks of 32; as 512 programs 126.4 to 126.7 us with blocks of 32 and 129 us with blocks of 16.
"""

BLOCK_N = 64
PROGRAMS_PER_SM = 1  # how finely caches are split: this many parts in all for each multiprocessor
NUM_WARPS = 4
NUM_STAGES = 3


@triton.jit
def decode_parts_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, acc_ptr, top_ptr, total_ptr, keys, part, scale,
    SHARED: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr, BN: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    own = tl.program_id(0).to(tl.int64)  # a key head of a sequence
    index = tl.program_id(1)
    row = tl.arange(0, ROWS)
    d = tl.arange(0, DEPTH)
    head = own * SHARED + row
    wanted = (row[:, None] < SHARED) & (d[None, :] < D)
    q = tl.load(q_ptr + head[:, None] * D + d[None, :], mask=wanted, other=0.0)
    acc = tl.zeros((ROWS, DEPTH), tl.float32)
    top = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    end = tl.minimum((index + 1) * part, keys)
    for start in tl.range(index * part, end, BN):
        j = start + tl.arange(0, BN)
        at = own * keys * D + j[:, None].to(tl.int64) * D + d[None, :]
        inside = (j[:, None] < end) & (d[None, :] < D)
        s = tl.dot(q, tl.trans(tl.load(k_ptr + at, mask=inside, other=0.0)), input_precision="tf32x3") * scale
        s = tl.where(j[None, :] < end, s, -float("inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 1)
        values = tl.load(v_ptr + at, mask=inside, other=0.0)
        acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None], input_precision="tf32x3")
        top = higher
    if WHOLE:
        y = acc / total[:, None]
        tl.store(y_ptr + head[:, None] * D + d[None, :], y.to(y_ptr.dtype.element_ty), mask=wanted)
    else:
        at = head * tl.num_programs(1) + index
        tl.store(top_ptr + at, top, mask=row < SHARED)
        tl.store(total_ptr + at, total, mask=row < SHARED)
        tl.store(acc_ptr + at[:, None] * D + d[None, :], acc, mask=wanted)


@triton.jit
def decode_merge_kernel(
    acc_ptr, top_ptr, total_ptr, y_ptr, parts, PARTS: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr
):
    head = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DEPTH)
    part = tl.arange(0, PARTS)
    tops = tl.load(top_ptr + head * parts + part, mask=part < parts, other=-float("inf"))
    weight = tl.exp2(tops - tl.max(tops, 0))
    total = tl.sum(tl.load(total_ptr + head * parts + part, mask=part < parts, other=0.0) * weight, 0)
    at = (head * parts + part[:, None]) * D + d[None, :]
    found = tl.load(acc_ptr + at, mask=(part[:, None] < parts) & (d[None, :] < D), other=0.0)
    y = tl.sum(found * weight[:, None], 0) / total
    tl.store(y_ptr + head * D + d, y.to(y_ptr.dtype.element_ty), mask=d < D)


def decode(q, k, v):
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    batch, heads, _, depth = q.shape
    groups, keys = k.shape[1:3]
    y = torch.empty_like(q)
    wanted = PROGRAMS_PER_SM * torch.cuda.get_device_properties(q.device).multi_processor_count
    depth_2 = max(16, triton.next_power_of_2(depth))
    bn = min(BLOCK_N, max(16, (200 << 10) // (2 * NUM_STAGES * depth_2 * q.element_size())))  # keys with their values
    bn = 1 << bn.bit_length() - 1
    blocks = triton.cdiv(keys, bn)
    part = triton.cdiv(blocks, min(256, triton.cdiv(wanted, batch * groups), blocks)) * bn
    parts = triton.cdiv(keys, part)  # none is empty
    acc = top = total = y  # for one part there is nothing to keep
    if parts > 1:
        acc = torch.empty((batch * heads, parts, depth), dtype=torch.float32, device=q.device)
        top = torch.empty((batch * heads, parts), dtype=torch.float32, device=q.device)
        total = torch.empty_like(top)
    decode_parts_kernel[(batch * groups, parts)](
        q, k, v, y, acc, top, total, keys, part, depth**-0.5 * 1.4426950408889634,
        SHARED=heads // groups, ROWS=max(16, triton.next_power_of_2(heads // groups)), D=depth, DEPTH=depth_2, BN=bn,
        WHOLE=parts == 1, num_warps=NUM_WARPS, num_stages=NUM_STAGES,
    )  # fmt: skip
    if parts > 1:
        decode_merge_kernel[(batch * heads,)](
            acc, top, total, y, parts, PARTS=triton.next_power_of_2(parts), D=depth, DEPTH=depth_2, num_warps=4
        )
    return y
