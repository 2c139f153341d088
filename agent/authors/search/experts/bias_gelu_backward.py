# says: the bias's gradient is summed while that of x is written, by a fixed grid, then over its programs
# gradients: x, bias = bias_gelu_backward(gradient, x, bias) of F.gelu(x + bias) where x: ... C, bias: C
# search: PROGRAMS_PER_SM = 4 8 16
# search: ACCESSES = 1 2 4
# search: NUM_WARPS = 4 8
# search: NUM_STAGES = 1 3
"""Backward of bias and exact GELU: dx = dy (P(h) + h p(h)) with h = x + bias and the Gaussian's P and p; the bias's
gradient is the sum of dx down its column.

A program has a strip of columns and every so many rows, and keeps a sum for each of its columns, so that dx is not read
again. Neighbouring programs have neighbouring strips. No atomics: the result is the same each time.

The Gaussian's upper tail is a polynomial and one power of two, as in the forward.
"""

PROGRAMS_PER_SM = 8
ACCESSES = 2  # of 16 bytes, a thread, in each row
NUM_WARPS = 4
NUM_STAGES = 3
COLUMNS = 32  # of the second kernel: a program adds that many columns of all parts


@triton.jit
def tail(a):
    # log2 of the tail: least squares weighed with a Q(a), from 0 to 5; it keeps falling beyond
    p = a * -2.3349389266513754e-06 + 3.373769868630916e-05
    p = p * a - 0.00016129331197589636
    p = p * a - 0.00019170464656781405
    p = p * a + 0.00712686637416482
    p = p * a - 0.05253361538052559
    p = p * a - 0.4591982960700989
    p = p * a - 1.1511059999465942
    p = p * a - 1.0
    return tl.exp2(p)


@triton.jit
def strips_kernel(
    dy_ptr, x_ptr, bias_ptr, dx_ptr, part_ptr, rows, cols, parts,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    strips = tl.cdiv(cols, BLOCK)
    part = tl.program_id(0) // strips
    column = tl.program_id(0) % strips * BLOCK + tl.arange(0, BLOCK)
    inside = column < cols
    bias = tl.load(bias_ptr + column, mask=inside, other=0.0)
    total = tl.zeros([BLOCK], tl.float32)
    for row in tl.range(part, rows, parts, num_stages=STAGES):
        at = row.to(tl.int64) * cols + column
        h = (tl.load(x_ptr + at, mask=inside, other=0.0) + bias).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
        a = tl.minimum(tl.abs(h), 64.0)  # the powers are 0 there, and infinity times 0 would be NaN
        upper = tail(a)
        below = tl.where(h > 0.0, 1.0 - upper, upper)
        bell = 0.3989422804014327 * tl.exp2(a * a * -0.7213475204444817)
        dx = dy * (below + tl.where(h > 0.0, a, -a) * bell)
        tl.store(dx_ptr + at, dx, mask=inside)
        total += dx
    tl.store(part_ptr + part * cols + column, total, mask=inside)


@triton.jit
def columns_kernel(part_ptr, sum_ptr, parts, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    total = tl.zeros([ROWS, COLS], tl.float32)
    for start in range(0, parts, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        inside = (row < parts) & (column[None, :] < cols)
        total += tl.load(part_ptr + row * cols + column[None, :], mask=inside, other=0.0)
    tl.store(sum_ptr + column, tl.sum(total, axis=0), mask=column < cols)


def bias_gelu_backward(gradient, x, bias):
    gradient, x = gradient.contiguous(), x.contiguous()
    cols = x.shape[-1]
    rows = x.numel() // cols
    block = min(NUM_WARPS * 32 * ACCESSES * 16 // x.element_size(), triton.next_power_of_2(cols))
    strips = triton.cdiv(cols, block)
    programs = PROGRAMS_PER_SM * torch.cuda.get_device_properties(x.device).multi_processor_count
    parts = max(1, min(rows, programs // strips))
    dx = torch.empty_like(x)
    part = torch.empty((parts, cols), dtype=torch.float32, device=x.device)
    strips_kernel[(parts * strips,)](
        gradient, x, bias, dx, part, rows, cols, parts,
        BLOCK=block, STAGES=NUM_STAGES, num_warps=NUM_WARPS,
    )  # fmt: skip
    dbias = torch.empty_like(bias)
    columns_kernel[(triton.cdiv(cols, COLUMNS),)](part, dbias, parts, cols, ROWS=32, COLS=COLUMNS, num_warps=4)
    return dx, dbias
