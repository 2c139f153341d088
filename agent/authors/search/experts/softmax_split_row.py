# order: 4
# says: split rows: several programs share one row, for matrices with fewer rows than the GPU has multiprocessors
# fits: softmax(x) = torch.softmax(x, -1) where x: R<1025 C
# fits: softmax(x) = torch.softmax(x, 1) where x: R<1025 C
# search: PROGRAMS_PER_SM = 2 4 8 16
# search: BLOCK = 2048 4096 8192
# search: NUM_WARPS = 4 8 16
"""Softmax over the last dimension for few, very long rows: several programs share a row.

One program a row leaves most multiprocessors idle when there are fewer rows than those. The first kernel reduces each
part of a row to a maximum and a sum; the second combines a row's parts (a few numbers, from the L2 cache) and writes.
The first read of x asks to stay in the L2 cache (evict last), where the second finds it if x fits; not timed. With
many rows two kernels read x twice from memory (8192 rows of 8192: 385-430 us on an H200 instead of 128): they are
left to the others.
"""

PROGRAMS_PER_SM = 8
BLOCK = 4096
NUM_WARPS = 8


@triton.jit
def softmax_parts_kernel(x_ptr, top_ptr, total_ptr, cols, part, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1)
    end = tl.minimum((index + 1) * part, cols)
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(index * part, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + column, mask=column < end, other=-float("inf"), eviction_policy="evict_last")
        x = x.to(tl.float32)
        new_top = tl.maximum(top, x)
        safe = tl.where(new_top == -float("inf"), 0.0, new_top)  # a lane that has seen only -inf adds nothing
        total = total * tl.exp2((top - safe) * 1.4426950408889634) + tl.exp2((x - safe) * 1.4426950408889634)
        top = new_top
    part_top = tl.max(top, axis=0)
    safe = tl.where(part_top == -float("inf"), 0.0, part_top)
    at = row * tl.num_programs(1) + index
    tl.store(top_ptr + at, part_top)
    tl.store(total_ptr + at, tl.sum(total * tl.exp2((top - safe) * 1.4426950408889634), axis=0))


@triton.jit
def softmax_combine_kernel(
    x_ptr, y_ptr, top_ptr, total_ptr, cols, part, parts, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, PARTS)
    tops = tl.load(top_ptr + row * parts + index, mask=index < parts, other=-float("inf"))
    totals = tl.load(total_ptr + row * parts + index, mask=index < parts, other=0.0)
    top = tl.max(tops, axis=0)
    total = tl.sum(totals * tl.exp2((tops - top) * 1.4426950408889634), axis=0)
    first = tl.program_id(1) * part
    end = tl.minimum(first + part, cols)
    for start in tl.range(first, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < end
        x = tl.load(x_ptr + row * cols + column, mask=inside, other=-float("inf"), eviction_policy="evict_first")
        y = tl.exp2((x.to(tl.float32) - top) * 1.4426950408889634) / total
        tl.store(y_ptr + row * cols + column, y, mask=inside)


def softmax(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    rows, cols = x.shape
    block = min(BLOCK, triton.next_power_of_2(cols))
    wanted = PROGRAMS_PER_SM * torch.cuda.get_device_properties(x.device).multi_processor_count
    blocks = triton.cdiv(cols, block)
    part = triton.cdiv(blocks, max(1, min(wanted // rows, blocks))) * block  # whole blocks: aligned, wide loads
    parts = triton.cdiv(cols, part)  # none is empty
    tops, totals = (torch.empty((rows, parts), dtype=torch.float32, device=x.device) for _ in range(2))
    warps = max(NUM_WARPS, min(32, block // 1024))  # at most 32 lanes a thread, of three numbers each
    grid = (rows, parts)
    softmax_parts_kernel[grid](x, tops, totals, cols, part, BLOCK=block, num_warps=warps)
    softmax_combine_kernel[grid](
        x, y, tops, totals, cols, part, parts, PARTS=triton.next_power_of_2(parts), BLOCK=block, num_warps=warps
    )
    return y
