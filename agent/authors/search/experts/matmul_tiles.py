# order: 3
# says: one tile a program, neighbours share operands in the L2 cache, products on tensor cores, the epilogue in registers
# fits: matmul(a, b, precision=PRECISION) = a @ b where a: M K, b: K N
# fits: matmul(a, b, precision=PRECISION) = a @ b where a: B<65536 M K, b: B K N
# fits: matmul(a, b, precision=PRECISION) = a @ b where a: B<65536 M K, b: K N
# fits: matmul(a.flatten(0, 2), b, precision=PRECISION).view(*a.shape[:3], -1) = a @ b where a: A B M K, b: K N
# fits: matmul(a, b.t(), precision=PRECISION) = F.linear(a, weight=b) where a: M K, b: N K
# fits: matmul(a, b.t(), bias, precision=PRECISION) = F.linear(a, weight=b, bias=bias) where a: M K, b: N K, bias: N
# fits: matmul(a, b, bias, "relu", precision=PRECISION) = torch.relu(torch.addmm(bias, a, b)) where a: M K, b: K N, bias: N
# fits: matmul(a, b.t(), bias, "relu", precision=PRECISION) = torch.relu(F.linear(a, weight=b, bias=bias)) where a: M K, b: N K, bias: N
# fits: matmul(a, b.t(), bias, "gelu_tanh", precision=PRECISION) = F.gelu(F.linear(a, weight=b, bias=bias), approximate="tanh") where a: M K, b: N K, bias: N
# fits: matmul(a, b.t(), bias, "gelu", precision=PRECISION) = F.gelu(F.linear(a, weight=b, bias=bias)) where a: M K, b: N K, bias: N
# fits: matmul(a, b, residual=r, precision=PRECISION) = torch.addmm(r, a, b) where a: M K, b: K N, r: M N
# task: matmul_fp8 = matmul(a, b.t(), scale_a=scale_a, scale_b=scale_b, dtype=torch.bfloat16)
# search: BLOCK_M = 64 128
# search: BLOCK_N = 128 256
# search: BLOCK_K = 64 128
# search: NUM_WARPS = 4 8
# search: NUM_STAGES = 2 3 4
"""Matrix product, one tile of the result a program, with bias, residual, scales and activation applied in registers.

Programs that run at the same time cover a compact patch of the result (GROUP_M rows of tiles), so that most of what
they read is in the L2 cache. Any strides: a transposed operand is read where it lies.
"""

BLOCK_M = 128
BLOCK_N = 256
BLOCK_K = 64  # for 16-bit operands; the same number of bytes for others
GROUP_M = 8
NUM_WARPS = 8
NUM_STAGES = 3


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":  # 1 + tanh(u) = 2 sigmoid(2 u)
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return x


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, bias_ptr, residual_ptr, scale_a_ptr, scale_b_ptr,
    m, n, k, a_batch, a_row, a_col, b_batch, b_row, b_col,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, SCALES: tl.constexpr, ACTIVATION: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    high, wide = tl.cdiv(m, BM), tl.cdiv(n, BN)
    group = tl.program_id(0) // (GROUP * wide)
    height = tl.minimum(high - group * GROUP, GROUP)
    inner = tl.program_id(0) % (GROUP * wide)
    i = ((group * GROUP + inner % height) * BM + tl.arange(0, BM)).to(tl.int64)
    j = (inner // height * BN + tl.arange(0, BN)).to(tl.int64)
    t = tl.arange(0, BK).to(tl.int64)
    # rows and columns beyond the end read the first ones again: no mask in the loop, and they are not stored
    a = a_ptr + batch * a_batch + (i % m)[:, None] * a_row + t[None, :] * a_col
    b = b_ptr + batch * b_batch + t[:, None] * b_row + (j % n)[None, :] * b_col
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        left = k - start
        p = tl.load(a, mask=t[None, :] < left, other=0.0)
        q = tl.load(b, mask=t[:, None] < left, other=0.0)
        acc = tl.dot(p, q, acc, input_precision=INPUT_PRECISION)
        a += BK * a_col
        b += BK * b_row
    inside = (i[:, None] < m) & (j[None, :] < n)
    if SCALES:
        acc *= tl.load(scale_a_ptr + i, mask=i < m, other=0.0)[:, None]
        acc *= tl.load(scale_b_ptr + j, mask=j < n, other=0.0)[None, :]
    if BIAS:
        acc += tl.load(bias_ptr + j, mask=j < n, other=0.0)[None, :].to(tl.float32)
    if RESIDUAL:
        acc += tl.load(residual_ptr + i[:, None] * n + j[None, :], mask=inside, other=0.0).to(tl.float32)
    acc = activated(acc, ACTIVATION)
    c = c_ptr + batch * m * n + i[:, None] * n + j[None, :]
    tl.store(c, acc.to(c_ptr.dtype.element_ty), mask=inside)


def matmul(a, b, bias=None, activation="", residual=None, precision="", scale_a=None, scale_b=None, dtype=None):
    """act(scale_a * scale_b * (a @ b) + bias + residual) in a's dtype, or `dtype`; a, or a and b, may have a batch
    dimension."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    c = torch.empty((*a.shape[:-1], n), dtype=dtype or a.dtype, device=a.device)
    size = a.element_size()
    # float32 proper: three TF32 products are as exact and use tensor cores
    products = "tf32" if precision == "tf32_ok" else "tf32x3"
    bm = min(BLOCK_M, max(16, triton.next_power_of_2(m)))
    # TF32 operands have to be K-major: the compiler turns b in shared memory, which takes room and registers
    bn = min(BLOCK_N if size < 4 else min(BLOCK_N, 128), max(16, triton.next_power_of_2(n)))
    bk = min(max(32, BLOCK_K * 2 // size), max(32, triton.next_power_of_2(k)))
    stages = max(1, min(NUM_STAGES, (200 << 10) // ((bm + bn) * bk * size)))
    batched = a.dim() == 3
    matmul_kernel[(triton.cdiv(m, bm) * triton.cdiv(n, bn), a.shape[0] if batched else 1)](
        a, b, c, bias, residual, scale_a, scale_b, m, n, k,
        a.stride(0) if batched else 0, a.stride(-2), a.stride(-1),
        b.stride(0) if b.dim() == 3 else 0, b.stride(-2), b.stride(-1),
        BIAS=bias is not None, RESIDUAL=residual is not None, SCALES=scale_a is not None, ACTIVATION=activation,
        INPUT_PRECISION=products, BM=bm, BN=bn, BK=bk, GROUP=GROUP_M, num_warps=NUM_WARPS, num_stages=stages,
    )  # fmt: skip
    return c
