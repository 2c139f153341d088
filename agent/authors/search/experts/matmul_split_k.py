# order: 1
# says: whole tiles by TMA where there are enough; else every program takes an even stretch of all tiles' sums, a second kernel adds
# fits: split_matmul(a, b) = a @ b where a: M K, b: K N<257
# fits: split_matmul(a, b) = a @ b where a: M<257 K, b: K N
# fits: split_matmul(a, b.t()) = F.linear(a, weight=b) where a: M<257 K, b: N K
# search: BLOCK_M = 128 256
# search: BLOCK_N = 128 256
# search: BLOCK_K = 64 128
# search: PROGRAMS_PER_SM = 1 2
# search: NUM_WARPS = 4 8
# search: NUM_STAGES = 3 4
"""Matrix product for a result of few tiles and a long sum: a few tokens times a weight, or the gradient of a narrow
one.

The blocks of all sums, tile after tile, are one line that is cut into as many even stretches as there are programs
(stream-k): no wave is half empty, and at most programs + tiles parts are written, where a cut of each sum into equal
shares writes more or leaves multiprocessors idle. Parts are float32 and are added in a fixed order by a second kernel:
the same result every time, which atomics would not give.

Where the tiles alone give every multiprocessor one, nothing is cut and nothing added: 16 tokens times 8192 x 28672 are
bound by reading the weight, and take 109.2 us on an H200 (cuBLAS 109.6), 116.7 us when they are cut. Their 448 tiles
take about the same (110.3) when all are on multiprocessors at once, four on each with two stages, as when 264 are, two
with four or five (109.9); three on each with three take 120.6. Lines of the weight in a tile are 256 bytes long: with
128 the product takes 111.8 us at best, with 512 it takes 111.6.

The side of the result that is long is always the tiles' BLOCK_M: of a few tokens the transposed product is computed,
because a tensor core's rows are 64 at least and 16 tokens would waste most of them. Operands come by TMA whichever way
they lie, the tensor cores turn 16-bit ones: with loads by pointers, masks and 64-bit addresses, 32768 x 7168 x 256 took
300-336 us (202 so, 8 of them for the second kernel; cuBLAS 179-208, as the power limit has it; 213 when the last
program of a tile adds the parts in the same kernel), and the 16 tokens 115-144 us. What TMA cannot read (rows of no
multiple of 16 bytes, float32, whose transposed tiles the tensor cores do not take) goes to `masked_kernel`.
"""

from triton.tools.tensor_descriptor import TensorDescriptor

# for tiles more than 64 wide; narrow ones, which memory holds up, are half as high, read lines of twice the length and
# lie two on a multiprocessor where one wide one lies
BLOCK_M = 128
BLOCK_N = 256
BLOCK_K = 64
PROGRAMS_PER_SM = 1
NUM_WARPS = 8
NUM_STAGES = 4  # or as many as there is room for


@triton.jit
def whole_kernel(
    a, b, y_ptr, m, n, k, y_row, y_col,
    A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) % tl.cdiv(m, BM) * BM, tl.program_id(0) // tl.cdiv(m, BM) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(0, k, BK):
        p = a.load([start, row]).T if A_TURNED else a.load([row, start])
        q = b.load([column, start]).T if B_TURNED else b.load([start, column])
        acc = tl.dot(p, q, acc)
    i, j = (row + tl.arange(0, BM)).to(tl.int64), (column + tl.arange(0, BN)).to(tl.int64)
    at = i[:, None] * y_row + j[None, :] * y_col
    tl.store(y_ptr + at, acc.to(y_ptr.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))


@triton.jit
def stream_kernel(
    a_ptr, b_ptr, part_ptr, m, n, k, a_step, b_step,
    A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    if A_TURNED:
        a = tl.make_tensor_descriptor(a_ptr, [k, m], [a_step.to(tl.int64), 1], [BK, BM])
    else:
        a = tl.make_tensor_descriptor(a_ptr, [m, k], [a_step.to(tl.int64), 1], [BM, BK])
    if B_TURNED:
        b = tl.make_tensor_descriptor(b_ptr, [n, k], [b_step.to(tl.int64), 1], [BN, BK])
    else:
        b = tl.make_tensor_descriptor(b_ptr, [k, n], [b_step.to(tl.int64), 1], [BK, BN])
    high = tl.cdiv(m, BM)
    blocks = tl.cdiv(k, BK)
    line = (high * tl.cdiv(n, BN) * blocks).to(tl.int64)
    first = (tl.program_id(0) * line // tl.num_programs(0)).to(tl.int32)
    last = ((tl.program_id(0) + 1) * line // tl.num_programs(0)).to(tl.int32)
    own = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    for tile in tl.range(first // blocks, tl.cdiv(last, blocks)):
        row, column = tile % high * BM, tile // high * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for block in tl.range(tl.maximum(first - tile * blocks, 0), tl.minimum(last - tile * blocks, blocks)):
            start = block * BK
            p = a.load([start, row]).T if A_TURNED else a.load([row, start])
            q = b.load([column, start]).T if B_TURNED else b.load([start, column])
            acc = tl.dot(p, q, acc)
        # a part begins where a program or a tile does: program + tile numbers them without a gap in their order
        tl.store(part_ptr + (tl.program_id(0) + tile).to(tl.int64) * (BM * BN) + own, acc)


@triton.jit
def stream_add_kernel(
    part_ptr, y_ptr, m, n, k, programs, y_row, y_col,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    high = tl.cdiv(m, BM)
    blocks = tl.cdiv(k, BK)
    line = (high * tl.cdiv(n, BN) * blocks).to(tl.int64)
    # the programs that hold the first and the last block of this tile
    first = ((tile * blocks + 1).to(tl.int64) * programs - 1) // line
    last = (((tile + 1) * blocks).to(tl.int64) * programs - 1) // line
    inner = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    own = inner[:, None] * BN + tl.arange(0, BN)[None, :]
    total = tl.zeros((ROWS, BN), tl.float32)
    for program in range(first, last + 1):
        total += tl.load(part_ptr + (program + tile) * (BM * BN) + own)
    i = (tile % high * BM + inner).to(tl.int64)
    j = (tile // high * BN + tl.arange(0, BN)).to(tl.int64)
    at = i[:, None] * y_row + j[None, :] * y_col
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))


@triton.jit
def masked_kernel(
    a_ptr, b_ptr, part_ptr, m, n, k, share, a_row, a_col, b_row, b_col,
    INPUT_PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    i = (tl.program_id(0) % tl.cdiv(m, BM) * BM + tl.arange(0, BM)).to(tl.int64)
    j = (tl.program_id(0) // tl.cdiv(m, BM) * BN + tl.arange(0, BN)).to(tl.int64)
    first = tl.program_id(1) * share
    end = tl.minimum(first + share, k)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(first, end, BK):
        t = (start + tl.arange(0, BK)).to(tl.int64)
        a_at = i[:, None] * a_row + t[None, :] * a_col
        b_at = t[:, None] * b_row + j[None, :] * b_col
        p = tl.load(a_ptr + a_at, mask=(i[:, None] < m) & (t[None, :] < end), other=0.0)
        q = tl.load(b_ptr + b_at, mask=(t[:, None] < end) & (j[None, :] < n), other=0.0)
        acc = tl.dot(p, q, acc, input_precision=INPUT_PRECISION)
    at = tl.program_id(1).to(tl.int64) * m * n + i[:, None] * n + j[None, :]
    tl.store(part_ptr + at, acc.to(part_ptr.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))


@triton.jit
def add_kernel(part_ptr, y_ptr, size, parts, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(parts):
        total += tl.load(part_ptr + part * size.to(tl.int64) + at, mask=at < size, other=0.0)
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=at < size)


def allocate(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


def multiprocessors(x):
    return torch.cuda.get_device_properties(x.device).multi_processor_count


def readable(x):
    """Whether TMA can read x, or x transposed: 16-bit elements, lines that are multiples of 16 bytes."""
    return x.element_size() == 2 and 1 in x.stride() and max(x.stride()) % 8 == 0 and x.data_ptr() % 16 == 0


def split_matmul(a, b):
    y = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    if not (readable(a) and readable(b)):
        return masked(a, b, y)
    if a.shape[0] < b.shape[1]:
        stream(b.t(), a.t(), y.t())
    else:
        stream(a, b, y)
    return y


def stream(a, b, y):
    """y = a @ b, where b has few columns."""
    (m, k), n = a.shape, b.shape[1]
    bn = min(BLOCK_N, max(16, triton.next_power_of_2(n)))
    high, bk, per_sm = (
        (BLOCK_M, BLOCK_K, PROGRAMS_PER_SM) if bn > 64 else (BLOCK_M // 2, 2 * BLOCK_K, 2 * PROGRAMS_PER_SM)
    )
    bm = min(high, max(64, triton.next_power_of_2(m)))
    tiles = triton.cdiv(m, bm) * triton.cdiv(n, bn)
    room = ((226 << 10) // per_sm - (2 << 10)) // ((bm + bn) * bk * 2)
    options = {
        "A_TURNED": a.stride(1) != 1, "B_TURNED": b.stride(1) != 1, "BM": bm, "BN": bn, "BK": bk,
        "num_warps": NUM_WARPS if bm > 64 else 4, "num_stages": max(1, min(NUM_STAGES, room)),
    }  # fmt: skip
    if tiles >= multiprocessors(a):
        tensors = described(a, bm, bk), described(b, bk, bn), y
        whole_kernel[(tiles,)](*tensors, m, n, k, *y.stride(), **options)
        return
    blocks = triton.cdiv(k, bk)
    programs = min(per_sm * multiprocessors(a), tiles * blocks)
    parts = torch.empty((programs + tiles, bm, bn), dtype=torch.float32, device=a.device)
    triton.set_allocator(allocate)  # descriptors lie in memory that the launch asks for
    stream_kernel[(programs,)](a, b, parts, m, n, k, max(a.stride()), max(b.stride()), **options)
    rows = min(bm, max(1, 4096 // bn))
    stream_add_kernel[(tiles, bm // rows)](
        parts, y, m, n, k, programs, *y.stride(), BM=bm, BN=bn, BK=bk, ROWS=rows, num_warps=4
    )


def described(x, height, width):
    """x for TMA, in blocks of (height, width); turned where its columns are contiguous."""
    if x.stride(1) != 1:
        x, height, width = x.t(), width, height
    return TensorDescriptor(x, list(x.shape), [x.stride(0), 1], [height, width])


def masked(a, b, y):
    """The product by plain loads, each sum cut into equal shares."""
    (m, k), n = a.shape, b.shape[1]
    size = a.element_size()
    bm = min(64, max(16, triton.next_power_of_2(m)))
    bn = min(64, max(16, triton.next_power_of_2(n)))
    bk = 256 // size
    tiles = triton.cdiv(m, bm) * triton.cdiv(n, bn)
    blocks = triton.cdiv(k, bk)
    share = triton.cdiv(blocks, max(1, min(2 * multiprocessors(a) // tiles, blocks))) * bk
    splits = triton.cdiv(k, share)
    parts = torch.empty((splits, m, n), dtype=torch.float32, device=a.device) if splits > 1 else y
    masked_kernel[(tiles, splits)](
        a, b, parts, m, n, k, share, *a.stride(), *b.stride(),
        INPUT_PRECISION="tf32x3", BM=bm, BN=bn, BK=bk, num_warps=4, num_stages=4,
    )  # fmt: skip
    if splits > 1:
        add_kernel[(triton.cdiv(m * n, 512),)](parts, y, m * n, splits, BLOCK=512, num_warps=4)
    return y
