# says: one grid for all groups: the host lists their blocks of rows; tiles that share operands are neighbours
# task: grouped_matmul = grouped_matmul(x, self.weight, self.sizes)
# search: BLOCK_M = 64 128
# search: BLOCK_N = 128 256
# search: BLOCK_K = 64 128
# search: PROGRAMS_PER_SM = 1 2
# search: ONE_LOOP = 0 1
# search: NUM_WARPS = 4 8
# search: NUM_STAGES = 3 4 5
"""A matrix product per group of rows, in one launch: launches of small groups one after the other leave the GPU idle.

The host knows the sizes, so it lists (group, first row, end) of every block of rows; the blocks of a group are
neighbours. A fixed grid walks over the tiles, columns first: the few tiles that run at a time are those of a dozen
groups, whose rows and weights are read from memory once. Operands come by TMA. No block crosses groups: rows of the
next one are loaded with its last, and not stored. On an H200, 32768 rows of 128 groups, 2048 x 768: 204.3 us with four
stages, 207.1 where tiles are not one loop with the steps over k, 206.8 with two programs of 4 warps and 128 x 128
a multiprocessor (265.5 as one loop); 244.7 with blocks of rows first, 223.6 with a program a tile, 249.8 with blocks of
64 rows. With pointers instead of TMA and rows first, 322; FlagGems takes 287.

Where TMA cannot read a row, or the last step over k would run into the next group's weight, the operands come by
pointers with masks.
"""

BLOCK_M = 128
BLOCK_N = 256
BLOCK_K = 64
PROGRAMS_PER_SM = 1
ONE_LOOP = 1  # of tiles and steps over k: the next tile's operands are on their way while this one ends
NUM_WARPS = 8
NUM_STAGES = 4


@triton.jit
def keep(acc, y_ptr, i, j, end, n):
    at = i[:, None].to(tl.int64) * n + j[None, :]
    tl.store(y_ptr + at, acc.to(y_ptr.dtype.element_ty), mask=(i[:, None] < end) & (j[None, :] < n))


@triton.jit
def grouped_kernel(
    x_ptr, weight_ptr, table_ptr, y_ptr, rows, weight_rows, blocks, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ONE_LOOP: tl.constexpr,
):  # fmt: skip
    x = tl.make_tensor_descriptor(x_ptr, [rows, k], [k.to(tl.int64), 1], [BM, BK])
    weight = tl.make_tensor_descriptor(weight_ptr, [weight_rows, n], [n.to(tl.int64), 1], [BK, BN])
    wide = tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), blocks * wide, tl.num_programs(0), flatten=ONE_LOOP):
        entry = table_ptr + tile // wide * 3
        group, first, end = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
        column = tile % wide * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for start in range(0, k, BK):
            acc = tl.dot(x.load([first, start]), weight.load([group * k + start, column]), acc)
        keep(acc, y_ptr, first + tl.arange(0, BM), column + tl.arange(0, BN), end, n)


@triton.jit
def masked_kernel(x_ptr, weight_ptr, table_ptr, y_ptr, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    wide = tl.cdiv(n, BN)
    entry = table_ptr + tl.program_id(0) // wide * 3
    group, first, end = tl.load(entry).to(tl.int64), tl.load(entry + 1), tl.load(entry + 2)
    i, j = first + tl.arange(0, BM), tl.program_id(0) % wide * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(0, k, BK):
        t = start + tl.arange(0, BK)
        x_at = i[:, None].to(tl.int64) * k + t[None, :]
        w_at = (group * k + t[:, None]) * n + j[None, :]
        p = tl.load(x_ptr + x_at, mask=(i[:, None] < end) & (t[None, :] < k), other=0.0)
        q = tl.load(weight_ptr + w_at, mask=(t[:, None] < k) & (j[None, :] < n), other=0.0)
        acc = tl.dot(p, q, acc)
    keep(acc, y_ptr, i, j, end, n)


def tile_table(sizes, height):
    """(group, first row, end of the group) of each block of rows; empty groups have none."""
    found, start = [], 0
    for group, size in enumerate(sizes):
        found += [(group, row, start + size) for row in range(start, start + size, height)]
        start += size
    return found


def allocate(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


def grouped_matmul(x, weight, sizes):
    x, weight = x.contiguous(), weight.contiguous()
    groups, k, n = weight.shape
    y = torch.empty((x.shape[0], n), dtype=x.dtype, device=x.device)
    bm, bn = BLOCK_M, min(BLOCK_N, max(16, triton.next_power_of_2(n)))
    table = torch.tensor(tile_table(sizes, bm), dtype=torch.int32, device=x.device)
    blocks = table.shape[0]
    size = x.element_size()
    if k % BLOCK_K or k * size % 16 or n * size % 16:
        masked_kernel[(blocks * triton.cdiv(n, bn),)](
            x, weight, table, y, n, k, BM=bm, BN=bn, BK=32, num_warps=NUM_WARPS, num_stages=2
        )
        return y
    triton.set_allocator(allocate)  # descriptors lie in memory that the launch asks for
    stages = max(1, min(NUM_STAGES, (224 << 10) // PROGRAMS_PER_SM // ((bm + bn) * BLOCK_K * size)))
    programs = PROGRAMS_PER_SM * torch.cuda.get_device_properties(x.device).multi_processor_count
    grouped_kernel[(min(programs, blocks * triton.cdiv(n, bn)),)](
        x, weight, table, y, x.shape[0], groups * k, blocks, n, k,
        BM=bm, BN=bn, BK=BLOCK_K, ONE_LOOP=ONE_LOOP, num_warps=NUM_WARPS, num_stages=stages,
    )  # fmt: skip
    return y
