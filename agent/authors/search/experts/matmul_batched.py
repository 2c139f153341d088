# order: 1
# says: batches by TMA: a program a multiprocessor, stores of one tile under the products of the next
# fits: batched_matmul(a, b) = a @ b where a: plain B<65536 M K, b: plain B K N
# search: BLOCK_M = 64 128
# search: BLOCK_N = 128 256
# search: PROGRAMS_PER_SM = 1 2 3
# search: NUM_STAGES = 2 3
"""Product of each pair of matrices of two batches, where sums are short: what counts is how operands and results
travel.

128 products of 2048 x 128 x 512 in bfloat16 move 352 MB, 83 us on an H200, but a program for each tile of 128 x 128
reads another 537 MB from the L2 cache, and nothing runs under its store: 159 us at best (cuBLAS 100). Here the loops
over tiles and over k are one (flatten), so that the next operands travel while a result leaves: 102 us; 126 with tiles
of 128 x 128. Keeping the second operand in shared memory while a program walks down the first one took 126 us and more.

Operands that TMA cannot read (rows of no multiple of 16 bytes) and rows that do not divide into blocks go to
`masked_kernel`: a block that ends beyond its matrix would be stored in the next one.
"""

from triton.tools.tensor_descriptor import TensorDescriptor

BLOCK_M = 128
BLOCK_N = 256
PROGRAMS_PER_SM = 1
NUM_WARPS = 8
NUM_STAGES = 3
PIECES = 2  # of a result on its way through shared memory


@triton.jit
def put(c, acc, row, column, BM: tl.constexpr, BN: tl.constexpr, PIECES: tl.constexpr):
    if PIECES == 1:
        c.store([row, column], acc.to(c.dtype))
    else:
        left, right = tl.split(tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1)))
        c.store([row, column], left.to(c.dtype))
        c.store([row, column + BN // 2], right.to(c.dtype))


@triton.jit
def walk_kernel(
    a, b, c, batches, m, n, k,
    INPUT_PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    high, wide = m // BM, tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), batches * high * wide, tl.num_programs(0), flatten=True):
        row = tile // wide * BM  # of all batches: programs next to each other share it
        column = tile % wide * BN
        batch = tile // (wide * high)
        acc = tl.zeros((BM, BN), tl.float32)
        for start in range(0, k, BK):
            p = a.load([row, start])
            q = b.load([batch, start, column]).reshape(BK, BN)
            acc = tl.dot(p, q, acc, input_precision=INPUT_PRECISION)
        put(c, acc, row, column, BM, BN, PIECES)


@triton.jit
def masked_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k,
    INPUT_PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) // tl.cdiv(n, BN) * BM + tl.arange(0, BM)
    j = tl.program_id(0) % tl.cdiv(n, BN) * BN + tl.arange(0, BN)
    a, b = a_ptr + batch * m * k, b_ptr + batch * k * n
    acc = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(0, k, BK):
        t = start + tl.arange(0, BK)
        a_at, b_at = i[:, None].to(tl.int64) * k + t[None, :], t[:, None].to(tl.int64) * n + j[None, :]
        p = tl.load(a + a_at, mask=(i[:, None] < m) & (t[None, :] < k), other=0.0)
        q = tl.load(b + b_at, mask=(t[:, None] < k) & (j[None, :] < n), other=0.0)
        acc = tl.dot(p, q, acc, input_precision=INPUT_PRECISION)
    at = batch * m * n + i[:, None].to(tl.int64) * n + j[None, :]
    tl.store(c_ptr + at, acc.to(c_ptr.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))


def height(m):
    """Rows of a block that divide m, 16 at least, or 0."""
    return next((bm for bm in (BLOCK_M, 64, 32, 16) if bm <= BLOCK_M and m % bm == 0), 0)


def by_tma(a, b, c):
    (batches, m, k), n = a.shape, b.shape[2]
    bm, bn = height(m), min(BLOCK_N, max(32, triton.next_power_of_2(n)))
    bk = 64
    pieces = PIECES if bn >= 128 else 1
    # shared memory for a program, less barriers and the result on its way out
    room = (228 << 10) // PROGRAMS_PER_SM - 1280 - 2 * bm * bn // pieces
    stages = max(1, min(NUM_STAGES, room // (2 * bk * (bm + bn))))
    programs = PROGRAMS_PER_SM * torch.cuda.get_device_properties(a.device).multi_processor_count
    tiles = batches * (m // bm) * triton.cdiv(n, bn)
    tensors = (
        TensorDescriptor(a, [batches * m, k], [k, 1], [bm, bk]),
        TensorDescriptor(b, [batches, k, n], [k * n, n, 1], [1, bk, bn]),
        TensorDescriptor(c, [batches * m, n], [n, 1], [bm, bn // pieces]),
    )
    walk_kernel[(min(programs, tiles),)](
        *tensors, batches, m, n, k,
        INPUT_PRECISION="tf32", BM=bm, BN=bn, BK=bk, PIECES=pieces,
        num_warps=NUM_WARPS if bm > 64 else 4, num_stages=stages,
    )  # fmt: skip


def batched_matmul(a, b):
    a, b = a.contiguous(), b.contiguous()
    (batches, m, k), n = a.shape, b.shape[2]
    c = torch.empty((batches, m, n), dtype=a.dtype, device=a.device)
    readable = a.element_size() == 2 and k % 8 == 0 and n % 8 == 0 and a.data_ptr() % 16 == 0 and b.data_ptr() % 16 == 0
    if readable and height(m):
        by_tma(a, b, c)
        return c
    grid = (triton.cdiv(m, 64) * triton.cdiv(n, 64), batches)
    masked_kernel[grid](a, b, c, m, n, k, INPUT_PRECISION="tf32x3", BM=64, BN=64, BK=32, num_warps=4, num_stages=3)
    return c
