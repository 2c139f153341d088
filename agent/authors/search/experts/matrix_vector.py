# says: a dot product a row, long rows in pieces; no tensor core, which would wait for 15 of its 16 columns
# fits: matrix_vector(a, b) = a @ b where a: M K, b: K N<2
# fits: matrix_vector(a, b.t()) = F.linear(a, weight=b) where a: M K, b: N<2 K
# search: BLOCK = 1024 2048 4096 8192
# search: PROGRAMS_PER_SM = 4 8 16 32
# search: NUM_WARPS = 4 8 16
"""A matrix times a vector: one program for each row, or for a piece of one where rows are few, so that every
multiprocessor has several at a time. The pieces of a row are added by a second kernel, in a fixed order.

Products are added in float32, lane by lane, and the lanes meet once at the end. The matrix is read once and must not
push the vector, which all rows share, out of the L2. On an H200, 2048 x 1048576 of float32: 1938 us; blocks of 4096
1945 with 32 programs a multiprocessor and 2005 with 8 or 4, which are one a row there; 8192 by 16 warps 2074. cuBLAS
takes 2624, torch.compile's max-autotune 1913.
"""

BLOCK = 8192
PROGRAMS_PER_SM = 16
NUM_WARPS = 8


@triton.jit
def row_kernel(a_ptr, b_ptr, part_ptr, rows, cols, piece, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * piece
    last = tl.minimum(first + piece, cols)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(first, last, BLOCK):
        column = start + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + row * cols + column, mask=column < last, other=0.0, eviction_policy="evict_first")
        b = tl.load(b_ptr + column, mask=column < last, other=0.0, eviction_policy="evict_last")
        total += a.to(tl.float32) * b.to(tl.float32)
    tl.store(part_ptr + tl.program_id(1) * rows + row, tl.sum(total, axis=0).to(part_ptr.dtype.element_ty))


@triton.jit
def add_kernel(part_ptr, y_ptr, rows, pieces, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for piece in range(pieces):
        total += tl.load(part_ptr + piece * rows + row, mask=row < rows, other=0.0)
    tl.store(y_ptr + row, total.to(y_ptr.dtype.element_ty), mask=row < rows)


def matrix_vector(a, b):
    a, b = a.contiguous(), b.contiguous()
    rows, cols = a.shape
    y = torch.empty((rows, 1), dtype=a.dtype, device=a.device)
    block = min(BLOCK, triton.next_power_of_2(cols))
    wanted = PROGRAMS_PER_SM * torch.cuda.get_device_properties(a.device).multi_processor_count
    pieces = max(1, min(triton.cdiv(wanted, rows), triton.cdiv(cols, block)))
    piece = triton.cdiv(triton.cdiv(cols, pieces), block) * block
    pieces = triton.cdiv(cols, piece)
    parts = torch.empty((pieces, rows), dtype=torch.float32, device=a.device) if pieces > 1 else y
    row_kernel[(rows, pieces)](a, b, parts, rows, cols, piece, BLOCK=block, num_warps=NUM_WARPS)
    if pieces > 1:
        add_kernel[(triton.cdiv(rows, 128),)](parts, y, rows, pieces, BLOCK=128, num_warps=4)
    return y
