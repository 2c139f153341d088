# says: one read of each operand and one write, one 16-byte access a thread
# fits: gated(gate, up, False) = F.silu(gate) * up where gate: ... C, up: ... C
# fits: gated_halves(x, True) = F.gelu(x.chunk(2, dim=-1)[0], approximate="tanh") * x.chunk(2, dim=-1)[1]
# fits: gated_halves(x, False) = F.silu(x.chunk(2, dim=-1)[0]) * x.chunk(2, dim=-1)[1]
# search: ACCESSES = 1 2
# search: NUM_WARPS = 4 8 16 32
"""SwiGLU and GeGLU: an activation of one operand times another, element by element.

A thread takes as many neighbouring elements as fill one 16-byte access. On an H200, 8192 x 11008 of bfloat16 took
122.8 us so with 32 warps a program, 123.3 with 16, 123.7 with 4, 124.0 with two accesses and 16 warps; GeGLU of
8192 x 14336 164.7, and 166-168 with the others. What is read leaves the L2 last: 124.0 without, and 165.3. Loads that
leave first and prefetches cost 3-8 %. Operands of one shape are one long row; halves of a row need no division for
their addresses: rows are a dimension of the grid.
"""

ACCESSES = 1  # of 16 bytes, a thread
NUM_WARPS = 32


@triton.jit
def gated_kernel(
    gate_ptr, up_ptr, y_ptr, cols, stride,
    FLAT: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # of a single row only the grid's first dimension is long enough for the blocks
    first = tl.program_id(0 if FLAT else 1).to(tl.int64) * BLOCK
    row = 0 if FLAT else tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    inside = first + lane < cols
    at = row * stride + first + lane
    gate = tl.load(gate_ptr + at, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    up = tl.load(up_ptr + at, mask=inside, other=0.0, eviction_policy="evict_last")
    if GELU:  # 1 + tanh(u) = 2 sigmoid(2 u)
        active = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        active = gate * tl.sigmoid(gate)
    # the activation is a tensor of the reference's: it has its dtype, and so has the product
    y = active.to(up.dtype) * up
    tl.store(y_ptr + row * cols + first + lane, y, mask=inside)


def launch(gate, up, y, cols, stride, flat, gelu):
    block = NUM_WARPS * 32 * ACCESSES * 16 // y.element_size()
    blocks = triton.cdiv(cols, block)
    gated_kernel[(blocks,) if flat else (y.numel() // cols, blocks)](
        gate, up, y, cols, stride,
        FLAT=flat, GELU=gelu, BLOCK=block, num_warps=NUM_WARPS,
    )  # fmt: skip
    return y


def gated(gate, up, gelu):
    gate, up = gate.contiguous(), up.contiguous()
    return launch(gate, up, torch.empty_like(gate), gate.numel(), gate.numel(), True, gelu)


def gated_halves(x, gelu):
    x = x.contiguous()
    cols = x.shape[-1] // 2
    y = torch.empty((*x.shape[:-1], cols), dtype=x.dtype, device=x.device)
    return launch(x[..., :cols], x[..., cols:], y, cols, 2 * cols, False, gelu)
