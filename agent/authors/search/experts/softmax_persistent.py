# order: 3
# says: persistent: a fixed grid walks over the rows, so the next row is loaded while this one is reduced
# fits: softmax(x) = torch.softmax(x, -1) where x: ... C<65537
# fits: softmax(x) = torch.softmax(x, 1) where x: R C<65537
# search: PROGRAMS_PER_SM = 1 2 4 8
# search: NUM_WARPS = 8 16 32
# search: NUM_STAGES = 1 2 3
"""Softmax over the last dimension with a persistent grid: each program walks over many rows.

A one-row program ends with a reduction during which it loads nothing. Here the loop is pipelined, so the next row
travels while the current one is reduced, and no time goes into starting programs. On an H200 that did not pay for
8192 x 8192 of float32 (138-145 us; one row a program 128): the way through shared memory costs more than the wait.
Loads on that way carry no policy for the L2 in Triton 3.6 and 3.7; with one stage they do.
"""

PROGRAMS_PER_SM = 4
NUM_WARPS = 8
NUM_STAGES = 2  # rows in flight; each stage holds a row in shared memory


@triton.jit
def softmax_persistent_kernel(x_ptr, y_ptr, rows, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < cols
    wide = tl.cast(cols, tl.int64)  # rows * cols may pass 2^31
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        start = row * wide
        x = tl.load(x_ptr + start + column, mask=inside, other=-float("inf"), eviction_policy="evict_last")
        x = x.to(tl.float32)
        e = tl.exp2((x - tl.max(x, axis=0)) * 1.4426950408889634)
        tl.store(y_ptr + start + column, e / tl.sum(e, axis=0), mask=inside)


def softmax(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    cols = x.shape[-1]
    rows = x.numel() // cols
    block = triton.next_power_of_2(cols)
    # a stage must fit beside the others in the 227 KiB of shared memory
    stages = max(1, min(NUM_STAGES, (192 << 10) // (block * x.element_size())))
    programs = PROGRAMS_PER_SM * torch.cuda.get_device_properties(x.device).multi_processor_count
    warps = max(NUM_WARPS, min(32, block // 2048))  # at most 64 elements of a wide row a thread
    grid = (min(programs, rows),)
    softmax_persistent_kernel[grid](x, y, rows, cols, BLOCK=block, STAGES=stages, num_warps=warps)
    return y
