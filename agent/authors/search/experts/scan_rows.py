# says: a row in blocks, the sum so far carried along; a row's next block travels meanwhile
# fits: cumsum(x) = x.cumsum(-1) where x: R C
# fits: cumsum(x) = x.cumsum(1) where x: R C
# search: BLOCK = 2048 4096 8192
# search: NUM_WARPS = 2 4 8
"""Cumulative sum along rows. A program walks along its part of a row and carries the sum.

Where rows are few, they are cut into parts: the first kernel sums each part, the second scans it from the sum of the
parts before it. That reads x twice instead of once, but with the whole GPU; what was read leaves the L2 last.

On an H200, 8192 x 8192 of float32 took 127.8 us with half a row a block by 8 warps, 128.5 with a row by 8 (129.8
where loads have no policy), 128.7 with half a row by 4, 131.3 with a quarter by 2, 45 % more with a row by 16.
"""

BLOCK = 4096
PROGRAMS_PER_SM = 4  # where rows are cut
NUM_WARPS = 8


@triton.jit
def part_sum_kernel(x_ptr, part_ptr, cols, part, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * part
    end = tl.minimum(first + part, cols)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(first, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + column, mask=column < end, other=0.0, eviction_policy="evict_last")
        total += x.to(tl.float32)
    tl.store(part_ptr + row * tl.num_programs(1) + tl.program_id(1), tl.sum(total, axis=0))


@triton.jit
def scan_kernel(x_ptr, part_ptr, y_ptr, cols, part, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * part
    end = tl.minimum(first + part, cols)
    before = tl.arange(0, PARTS)
    earlier = tl.load(part_ptr + row * tl.num_programs(1) + before, mask=before < tl.program_id(1), other=0.0)
    carried = tl.sum(earlier, axis=0)
    for start in tl.range(first, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + column, mask=column < end, other=0.0, eviction_policy="evict_last")
        x = x.to(tl.float32)
        tl.store(y_ptr + row * cols + column, tl.cumsum(x, axis=0) + carried, mask=column < end)
        carried += tl.sum(x, axis=0)


def cumsum(x):
    x = x.contiguous()
    rows, cols = x.shape
    y = torch.empty_like(x)
    block = min(BLOCK, triton.next_power_of_2(cols))
    wanted = PROGRAMS_PER_SM * torch.cuda.get_device_properties(x.device).multi_processor_count
    blocks = triton.cdiv(cols, block)
    part = triton.cdiv(blocks, max(1, min(wanted // rows, blocks))) * block
    parts = triton.cdiv(cols, part)
    sums = torch.empty((rows, parts), dtype=torch.float32, device=x.device)
    warps = max(NUM_WARPS, min(32, block // 2048))  # at most 64 elements a thread
    if parts > 1:
        part_sum_kernel[(rows, parts)](x, sums, cols, part, BLOCK=block, num_warps=warps)
    scan_kernel[(rows, parts)](
        x, sums, y, cols, part, PARTS=triton.next_power_of_2(parts), BLOCK=block, num_warps=warps
    )
    return y
