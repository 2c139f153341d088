# says: a few of short rows are drawn one by one; else value and place sorted as one 64-bit number, long rows in chunks
# fits: top_k(x, k) = torch.topk(x, k, dim=-1)[0], torch.topk(x, k, dim=-1)[1] where x: R C
# fits: top_k(x, k) = torch.topk(x, k, dim=1)[0], torch.topk(x, k, dim=1)[1] where x: R C
# search: TILE = 256 512 1024 2048
# search: NUM_WARPS = 1 2 4
"""The k largest of each row (a router's experts, candidates for a token), in order, with their places.

A float's bits are made to sort as a whole number does, and the place goes below them into one 64-bit key: a single
sort moves both, no two keys are equal, and of equal values the first place wins. Rows longer than CHUNK are cut, and
the winners of the parts, few by then, go through the same kernel again.

Sorting takes five times as long as reading: on an H200, for 262,144 rows of 256 float32 numbers and k = 8, 527 us with
a row by one warp, 611 by two, 605-614 with four by 4 and eight by 8, 983 with one element a thread.

So up to DRAWN winners of rows that a program holds are drawn one by one instead: the largest number, the first place
that has it, and once more without that place. Whole numbers of 32 bits are compared and reduced, in one instruction
each (8 winners of 256: a third of the instructions that sorting takes). For the
same rows 203.3 us with one a warp, 206.4 with two, 211.1 with four, 275.6 with two by two warps; torch.compile 3,180.
"""

DRAWN = 16  # the largest k that is not sorted
TILE = 256  # elements a program, of short rows
CHUNK = 2048  # elements a program, of long ones
NUM_WARPS = 1


@triton.jit
def sortable(x):
    """A float's bits as a whole number of the same order; negative floats sort the other way round. Its own inverse."""
    return tl.where(x < 0, x ^ 0x7FFFFFFF, x)


@triton.jit
def draw_kernel(x_ptr, value_ptr, place_ptr, rows, cols, K: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLS)[None, :]
    inside = (row[:, None] < rows) & (column < cols)
    x = tl.load(x_ptr + row[:, None] * cols + column, mask=inside, other=0.0).to(tl.float32)
    left = tl.where(inside, sortable(x.to(tl.int32, bitcast=True)), -0x80000000)
    for rank in tl.static_range(K):
        best = tl.max(left, axis=1)
        place = tl.min(tl.where(left == best[:, None], column, COLS), axis=1)
        value = sortable(best).to(tl.float32, bitcast=True)
        tl.store(value_ptr + row * K + rank, value.to(value_ptr.dtype.element_ty), mask=row < rows)
        tl.store(place_ptr + row * K + rank, place.to(tl.int64), mask=row < rows)
        left = tl.where(column == place[:, None], -0x80000000, left)


@triton.jit
def top_k_kernel(
    x_ptr, key_ptr, value_ptr, place_ptr, rows, cols, k,
    FIRST: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    inside = (row < rows) & (column < cols)
    if FIRST:
        x = tl.load(x_ptr + row * cols + column, mask=inside, other=0.0).to(tl.float32)
        bits = sortable(x.to(tl.int32, bitcast=True))
        key = (bits.to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)
        key = tl.where(inside, key, -0x7FFFFFFFFFFFFFFF)  # behind every element, -inf included
    else:
        key = tl.load(x_ptr + row * cols + column, mask=inside, other=-0x7FFFFFFFFFFFFFFF)
    best = tl.topk(key, KEPT, dim=1)
    rank = tl.arange(0, KEPT)[None, :]
    if LAST:
        value = sortable((best >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
        wanted = (row < rows) & (rank < k)
        tl.store(value_ptr + row * k + rank, value.to(value_ptr.dtype.element_ty), mask=wanted)
        tl.store(place_ptr + row * k + rank, 0x7FFFFFFF - (best & 0xFFFFFFFF), mask=wanted)
    else:
        at = (row * tl.num_programs(1) + tl.program_id(1)) * KEPT + rank
        tl.store(key_ptr + at, best, mask=row < rows)


def top_k(x, k):
    x = x.contiguous()
    rows, cols = x.shape
    values = torch.empty((rows, k), dtype=x.dtype, device=x.device)
    places = torch.empty((rows, k), dtype=torch.int64, device=x.device)
    kept = triton.next_power_of_2(k)
    block = triton.next_power_of_2(cols)
    if k <= DRAWN and block <= CHUNK:
        height = max(1, TILE // block)
        warps = max(NUM_WARPS, min(32, height * block // 1024))  # at most 32 numbers a thread
        draw_kernel[(triton.cdiv(rows, height),)](
            x, values, places, rows, cols, K=k, ROWS=height, COLS=block, num_warps=warps
        )
        return values, places
    chunk = max(CHUNK, 2 * kept)  # each round must shrink what is left
    source, first = x, True
    while True:
        cols = source.shape[1]
        block = max(kept, min(chunk, triton.next_power_of_2(cols)))
        height = max(1, TILE // block)
        parts = triton.cdiv(cols, block)
        keys = torch.empty((rows, parts * kept), dtype=torch.int64, device=x.device) if parts > 1 else None
        warps = max(NUM_WARPS, min(32, height * block // 1024))  # at most 32 of the 64-bit keys a thread
        top_k_kernel[(triton.cdiv(rows, height), parts)](
            source, keys, values, places, rows, cols, k,
            FIRST=first, LAST=parts == 1, ROWS=height, COLS=block, KEPT=kept, num_warps=warps,
        )  # fmt: skip
        if parts == 1:
            return values, places
        source, first = keys, False
