# says: one read and one write; the bias stays in the cache, the Gaussian is one polynomial and one power of two
# fits: bias_gelu(x, bias) = F.gelu(x + bias) where x: ... C, bias: C
# search: ROWS = 1 2 4
# search: ACCESSES = 1 2
# search: NUM_WARPS = 4 8 16
"""Bias and exact GELU. A program has ROWS pieces of rows, one below the other, and loads the bias of its columns once.

Programs go along a row first, so that those that run together read and write whole stretches of memory. With rows as
the first dimension of the grid, neighbours were a row apart, and wide strips were best: on an H200, 8192 x 8192 of
float32 took 129.1 us with two 16-byte accesses a thread and 16 warps, 131.8 with 4. Along the rows it takes 125.9 with
4 warps and two accesses, of one row or of two rows below each other, and 127.4 without the policy that lets x leave the
L2 last. TorchInductor's kernel takes 127.

GELU is max(h, 0) - |h| Q(|h|), where Q is the Gaussian's upper tail, and log2 Q is so smooth that a polynomial of
degree 8 does for all h: the result is off by 5e-8 at most (torch's float32 by 1e-6 near h = -5, where 1 + erf cancels)
and by 1.3e-7 of itself for positive h.
"""

ROWS = 2
ACCESSES = 1  # of 16 bytes, a thread, in each row
NUM_WARPS = 4


@triton.jit
def gelu(h):
    a = tl.minimum(tl.abs(h), 64.0)  # the power is 0 there, and infinity times 0 would be NaN
    # log2 of the tail: least squares weighed with a Q(a), from 0 to 5; it keeps falling beyond
    p = a * -2.3349389266513754e-06 + 3.373769868630916e-05
    p = p * a - 0.00016129331197589636
    p = p * a - 0.00019170464656781405
    p = p * a + 0.00712686637416482
    p = p * a - 0.05253361538052559
    p = p * a - 0.4591982960700989
    p = p * a - 1.1511059999465942
    p = p * a - 1.0
    return tl.maximum(h, 0.0, propagate_nan=tl.PropagateNan.ALL) - a * tl.exp2(p)


@triton.jit
def bias_gelu_kernel(x_ptr, bias_ptr, y_ptr, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    strips = tl.cdiv(cols, BLOCK)
    first = tl.program_id(0) // strips * ROWS
    row = tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) % strips * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (first + row < rows) & (column < cols)
    start = first.to(tl.int64) * cols  # one number a program; what is added to it fits 32 bits
    x = tl.load(x_ptr + start + (row * cols + column), mask=inside, other=0.0, eviction_policy="evict_last")
    bias = tl.load(bias_ptr + column, mask=column < cols, other=0.0, eviction_policy="evict_last")
    tl.store(y_ptr + start + (row * cols + column), gelu((x + bias).to(tl.float32)), mask=inside)


def bias_gelu(x, bias):
    x = x.contiguous()
    cols = x.shape[-1]
    rows = x.numel() // cols
    y = torch.empty_like(x)
    wide = NUM_WARPS * 32 * ACCESSES * 16 // x.element_size()
    block = min(wide, triton.next_power_of_2(cols))
    height = ROWS * (wide // block)  # of narrow rows, more
    bias_gelu_kernel[(triton.cdiv(rows, height) * triton.cdiv(cols, block),)](
        x, bias, y, rows, cols, ROWS=height, BLOCK=block, num_warps=NUM_WARPS
    )
    return y
