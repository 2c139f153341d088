# order: 2
# says: persistent: a program a multiprocessor, tiles moved by TMA, stores of one tile under the products of the next
# fits: matmul(a, b, precision=PRECISION) = a @ b where a: plain M K, b: plain K N
# fits: matmul(a.flatten(0, 2), b, precision=PRECISION).view(*a.shape[:3], -1) = a @ b where a: plain A B M K, b: plain K N
# fits: matmul(a, b, turned=True, precision=PRECISION) = a @ b.t() where a: plain M K, b: plain N K
# fits: matmul(a, b, turned=True, precision=PRECISION) = F.linear(a, weight=b) where a: plain M K, b: plain N K
# fits: matmul(a, b, bias, turned=True, precision=PRECISION) = F.linear(a, weight=b, bias=bias) where a: plain M K, b: plain N K, bias: N
# fits: matmul(a, b, bias, "relu", precision=PRECISION) = torch.relu(torch.addmm(bias, a, b)) where a: plain M K, b: plain K N, bias: N
# fits: matmul(a, b, bias, "relu", turned=True, precision=PRECISION) = torch.relu(F.linear(a, weight=b, bias=bias)) where a: plain M K, b: plain N K, bias: N
# fits: matmul(a, b, bias, "gelu_tanh", turned=True, precision=PRECISION) = F.gelu(F.linear(a, weight=b, bias=bias), approximate="tanh") where a: plain M K, b: plain N K, bias: N
# fits: matmul(a, b, residual=r, precision=PRECISION) = torch.addmm(r, a, b) where a: plain M K, b: plain K N, r: M N
# task: matmul_fp8 = matmul(a, b, turned=True, scale_a=scale_a, scale_b=scale_b, dtype=torch.bfloat16)
# search: BLOCK_M = 128 256
# search: BLOCK_N = 128 256
# search: GROUP_M = 4 8 16
# search: NUM_STAGES = 3 4
# search: PIECES = 2 4
"""Matrix product by a fixed grid that walks over the tiles of the result, with operands moved by TMA.

TMA takes addresses and bounds off the threads, which leaves their registers to a 128 x 256 tile. The loops over tiles
and over k are one (flatten), so that the next tile's operands travel while this one's result is stored. The result is
finished and goes out in PIECES, to need less shared memory beside the stages and fewer registers for a residual;
float32 results get 128 x 256 tiles so, with 128 x 128 ones 8192 x 4096 x 4096 took 1080 us on an H200 (cuBLAS 980). Of
8192 cubed in bfloat16, side by side with cuBLAS because the power limit moves both: 1.02 times as fast with 2 pieces
and 3 stages, 1.01 with 4 and 4, whatever GROUP_M; 0.975 times with tiles of 256 x 128. With a bias and ReLU, 1.06 times
as fast as torch (362 us with GROUP_M 8, 366 with 4; 128 x 128 tiles 397 at best); with GELU, 1.10 times (365 and 368).

TF32 operands have to be K-major for the tensor cores of Hopper: a matrix that is not is turned first, by a kernel of
its own; when the compiler turned each tile in shared memory instead, the same product took 2429 us. Where a row is no
multiple of 16 bytes TMA cannot read it: then `masked_kernel` does the work. A warp group of its own for the loads
(warp_specialize) was tried: 2101 us for 8192 cubed in bfloat16, where this takes 1448, and NaN now and then (see
`attention_flash`).
"""

BLOCK_M = 128
BLOCK_N = 256
BLOCK_K = 64  # for 16-bit operands; the same number of bytes for others
GROUP_M = 8
NUM_WARPS = 8
NUM_STAGES = 3
PIECES = 2  # of a 16-bit result; twice as many, 4 at most, of a float32 one


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "gelu_tanh":  # 1 + tanh(u) = 2 sigmoid(2 u)
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return x


@triton.jit
def finished(
    acc, i, j, m, n, bias_ptr, residual_ptr, scale_a_ptr, scale_b_ptr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, SCALES: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    if SCALES:
        acc *= tl.load(scale_a_ptr + i, mask=i < m, other=0.0)[:, None]
        acc *= tl.load(scale_b_ptr + j, mask=j < n, other=0.0)[None, :]
    if BIAS:
        acc += tl.load(bias_ptr + j, mask=j < n, other=0.0)[None, :].to(tl.float32)
    if RESIDUAL:
        at = i[:, None].to(tl.int64) * n + j[None, :]
        acc += tl.load(residual_ptr + at, mask=(i[:, None] < m) & (j[None, :] < n), other=0.0).to(tl.float32)
    return activated(acc, ACTIVATION)


@triton.jit
def halves(x, BM: tl.constexpr, BN: tl.constexpr):
    return tl.split(tl.permute(tl.reshape(x, (BM, 2, BN // 2)), (0, 2, 1)))


@triton.jit
def put(
    c, acc, row, column, m, n, bias_ptr, residual_ptr, scale_a_ptr, scale_b_ptr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, SCALES: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    i, j = row + tl.arange(0, acc.shape[0]), column + tl.arange(0, acc.shape[1])
    acc = finished(
        acc, i, j, m, n, bias_ptr, residual_ptr, scale_a_ptr, scale_b_ptr, BIAS, RESIDUAL, SCALES, ACTIVATION
    )
    c.store([row, column], acc.to(c.dtype))


@triton.jit
def place(tile, m, n, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """First row and column of a tile; tiles with neighbouring numbers share operands in the L2 cache."""
    high, wide = tl.cdiv(m, BM), tl.cdiv(n, BN)
    group = tile // (GROUP * wide)
    height = tl.minimum(high - group * GROUP, GROUP)
    inner = tile % (GROUP * wide)
    return (group * GROUP + inner % height) * BM, inner // height * BN


@triton.jit
def persistent_kernel(
    a_ptr, b_ptr, c_ptr, bias_ptr, residual_ptr, scale_a_ptr, scale_b_ptr, m, n, k,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, SCALES: tl.constexpr, ACTIVATION: tl.constexpr, TURNED: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    PIECES: tl.constexpr,
):  # fmt: skip
    a = tl.make_tensor_descriptor(a_ptr, [m, k], [k.to(tl.int64), 1], [BM, BK])
    if TURNED:
        b = tl.make_tensor_descriptor(b_ptr, [n, k], [k.to(tl.int64), 1], [BN, BK])
    else:
        b = tl.make_tensor_descriptor(b_ptr, [k, n], [n.to(tl.int64), 1], [BK, BN])
    c = tl.make_tensor_descriptor(c_ptr, [m, n], [n.to(tl.int64), 1], [BM, BN // PIECES])
    tiles = tl.cdiv(m, BM) * tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row, column = place(tile, m, n, BM, BN, GROUP)
        acc = tl.zeros((BM, BN), tl.float32)
        for start in range(0, k, BK):
            p = a.load([row, start])
            if TURNED:
                q = b.load([column, start]).T
            else:
                q = b.load([start, column])
            acc = tl.dot(p, q, acc, input_precision=INPUT_PRECISION)
        if PIECES == 1:
            parts = (acc,)
        else:
            parts = halves(acc, BM, BN)
            if PIECES == 4:
                parts = halves(parts[0], BM, BN // 2) + halves(parts[1], BM, BN // 2)
        for piece in tl.static_range(PIECES):
            put(
                c, parts[piece], row, column + piece * (BN // PIECES), m, n,
                bias_ptr, residual_ptr, scale_a_ptr, scale_b_ptr, BIAS, RESIDUAL, SCALES, ACTIVATION,
            )  # fmt: skip


@triton.jit
def masked_kernel(
    a_ptr, b_ptr, c_ptr, bias_ptr, residual_ptr, scale_a_ptr, scale_b_ptr, m, n, k,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, SCALES: tl.constexpr, ACTIVATION: tl.constexpr, TURNED: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row, column = place(tl.program_id(0), m, n, BM, BN, GROUP)
    i, j, t = row + tl.arange(0, BM), column + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        s = start + t
        a_at = i[:, None].to(tl.int64) * k + s[None, :]
        b_at = j[None, :].to(tl.int64) * k + s[:, None] if TURNED else s[:, None].to(tl.int64) * n + j[None, :]
        p = tl.load(a_ptr + a_at, mask=(i[:, None] < m) & (s[None, :] < k), other=0.0)
        q = tl.load(b_ptr + b_at, mask=(s[:, None] < k) & (j[None, :] < n), other=0.0)
        acc = tl.dot(p, q, acc, input_precision=INPUT_PRECISION)
    acc = finished(
        acc, i, j, m, n, bias_ptr, residual_ptr, scale_a_ptr, scale_b_ptr, BIAS, RESIDUAL, SCALES, ACTIVATION
    )
    at = i[:, None].to(tl.int64) * n + j[None, :]
    tl.store(c_ptr + at, acc.to(c_ptr.dtype.element_ty), mask=(i[:, None] < m) & (j[None, :] < n))


@triton.jit
def turn_kernel(b_ptr, t_ptr, k, n, BLOCK: tl.constexpr):
    i, j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (i[:, None] < k) & (j[None, :] < n)
    tile = tl.load(b_ptr + i[:, None].to(tl.int64) * n + j[None, :], mask=inside)
    tl.store(t_ptr + j[:, None].to(tl.int64) * k + i[None, :], tl.trans(tile), mask=tl.trans(inside))


def k_major(b):
    """b of (k, n) as (n, k)."""
    k, n = b.shape
    turned = torch.empty((n, k), dtype=b.dtype, device=b.device)
    turn_kernel[(triton.cdiv(k, 64), triton.cdiv(n, 64))](b, turned, k, n, BLOCK=64, num_warps=8)
    return turned


def allocate(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


def matmul(
    a, b, bias=None, activation="", residual=None, precision="", turned=False, scale_a=None, scale_b=None, dtype=None
):
    """act(scale_a * scale_b * (a @ b) + bias + residual); b is (n, k) where it is `turned`."""
    a, b = a.contiguous(), b.contiguous()
    (m, k), n = a.shape, b.shape[0 if turned else 1]
    c = torch.empty((m, n), dtype=dtype or a.dtype, device=a.device)
    size = a.element_size()
    options = {
        "BIAS": bias is not None, "RESIDUAL": residual is not None, "SCALES": scale_a is not None,
        "ACTIVATION": activation,
        # float32 proper: three TF32 products are as exact and use tensor cores
        "INPUT_PRECISION": "tf32" if precision == "tf32_ok" else "tf32x3", "GROUP": GROUP_M,
    }  # fmt: skip
    tensors = (a, b, c, bias, residual, scale_a, scale_b, m, n, k)
    if any(t.shape[1] * t.element_size() % 16 for t in (a, b, c)):
        grid = (triton.cdiv(m, 64) * triton.cdiv(n, 64),)
        masked_kernel[grid](*tensors, TURNED=turned, BM=64, BN=64, BK=32, num_warps=NUM_WARPS, num_stages=3, **options)
        return c
    if size == 4 and not turned:
        b, turned = k_major(b), True
        tensors = (a, b, *tensors[2:])
    triton.set_allocator(allocate)  # descriptors lie in memory that the launch asks for
    bk = BLOCK_K * 2 // size
    pieces = min(4, PIECES * max(1, c.element_size() // 2))
    # the result passes through shared memory, too, and so does a residual
    room = (224 << 10) - BLOCK_M * BLOCK_N // pieces * (c.element_size() + (0 if residual is None else 4))
    stages = max(1, min(NUM_STAGES, room // ((BLOCK_M + BLOCK_N) * bk * size)))
    programs = torch.cuda.get_device_properties(a.device).multi_processor_count
    persistent_kernel[(min(programs, triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N)),)](
        *tensors, TURNED=turned, BM=BLOCK_M, BN=BLOCK_N, BK=bk, PIECES=pieces,
        num_warps=NUM_WARPS, num_stages=stages, **options,
    )  # fmt: skip
    return c
