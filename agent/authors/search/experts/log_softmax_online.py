# says: rows in registers with the next on its way; wider ones in two walks, the second from the L2 cache
# fits: log_softmax(x) = torch.log_softmax(x, -1)
# fits: log_softmax(x) = torch.log_softmax(x, 1) where x: R C
# search: HELD = 0 32768
# search: BLOCK = 2048 4096 8192
# search: NUM_WARPS = 8 16 32
"""Log-softmax over the last dimension, rows of a vocabulary.

Rows of up to HELD columns stay in registers and are read once: a fixed grid walks over them, and the next row travels
to shared memory (128 kB of 32000 float32 numbers) while this one is reduced and written. Only one such row fits a
multiprocessor, so without the next on its way memory would idle. Triton gives loads on that way no policy. On an
H200, 4096 rows of 32000 took 272.8 us so.

Wider rows are walked over twice. The first walk keeps the row in the L2 cache if it can (evict last), the second is
its last use (evict first); both load straight to registers, where these policies are kept. The same rows so: 292.7 us
with 8192 columns a step by 16 warps, 293.7 with 4096 by 32, 349.8 with 4096 by 16 (380.3 without the policies).

What is subtracted is the maximum first and then the logarithm: both at once would round the larger away.
"""

HELD = 32768
BLOCK = 4096
NUM_WARPS = 16


@triton.jit
def log_softmax_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * cols
    y_ptr += row * cols
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, cols, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column, mask=column < cols, other=-float("inf"), eviction_policy="evict_last")
        x = x.to(tl.float32)
        higher = tl.maximum(top, x)
        safe = tl.where(higher == -float("inf"), 0.0, higher)  # a lane that has seen only -inf adds nothing
        total = total * tl.exp2((top - safe) * 1.4426950408889634) + tl.exp2((x - safe) * 1.4426950408889634)
        top = higher
    row_top = tl.max(top, axis=0)
    log_total = tl.log(tl.sum(total * tl.exp2((top - row_top) * 1.4426950408889634), axis=0))
    for start in tl.range(0, cols, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < cols
        x = tl.load(x_ptr + column, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        tl.store(y_ptr + column, (x - row_top) - log_total, mask=inside)


@triton.jit
def held_kernel(x_ptr, y_ptr, rows, cols, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < cols
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=2):
        first = row.to(tl.int64) * cols
        x = tl.load(x_ptr + first + column, mask=inside, other=-float("inf")).to(tl.float32)
        x -= tl.max(x, axis=0)
        total = tl.sum(tl.exp2(x * 1.4426950408889634), axis=0)
        tl.store(y_ptr + first + column, x - tl.log(total), mask=inside)


def log_softmax(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    cols = x.shape[-1]
    rows = x.numel() // cols
    whole = triton.next_power_of_2(cols)
    if cols <= HELD:
        warps = min(32, max(4, whole // 1024))  # 32 elements a thread
        fitting = max(1, 32 // warps)  # programs that a multiprocessor holds
        programs = fitting * torch.cuda.get_device_properties(x.device).multi_processor_count
        held_kernel[(min(rows, programs),)](x, y, rows, cols, BLOCK=whole, num_warps=warps)
        return y
    block = min(BLOCK, whole)
    warps = max(NUM_WARPS, min(32, block // 1024))  # at most 32 lanes a thread, of three numbers each
    log_softmax_kernel[(rows,)](x, y, cols, BLOCK=block, num_warps=warps)
    return y
