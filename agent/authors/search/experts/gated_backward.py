# says: one read of each operand and one write of each gradient, halves of a row in place
# gradients: gate, up = gated_backward(gradient, gate, up) of F.silu(gate) * up where gate: ... C, up: ... C
# gradients: x = halves_backward(gradient, x, True) of F.gelu(x.chunk(2, dim=-1)[0], approximate="tanh") * x.chunk(2, dim=-1)[1]
# gradients: x = halves_backward(gradient, x, False) of F.silu(x.chunk(2, dim=-1)[0]) * x.chunk(2, dim=-1)[1]
# search: ACCESSES = 1 2
# search: NUM_WARPS = 4 8 16 32
"""Backward of SwiGLU and GeGLU: the gradients of an activation and of what it is multiplied by, element by element.

A program writes both gradients, which for halves of a row are two places of one tensor: joined by a copy, as autograd
has it, each half would be written and read once more.
"""

ACCESSES = 1  # of 16 bytes, a thread
NUM_WARPS = 8


@triton.jit
def gated_backward_kernel(
    dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, cols, stride,
    FLAT: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # of a single row only the grid's first dimension is long enough for the blocks
    first = tl.program_id(0 if FLAT else 1).to(tl.int64) * BLOCK
    row = 0 if FLAT else tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    inside = first + lane < cols
    at = row * stride + first + lane
    gate = tl.load(gate_ptr + at, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    up = tl.load(up_ptr + at, mask=inside, other=0.0, eviction_policy="evict_last").to(tl.float32)
    dy = tl.load(dy_ptr + row * cols + first + lane, mask=inside, other=0.0, eviction_policy="evict_last")
    if GELU:  # 1 + tanh(u) = 2 sigmoid(2 u)
        square = gate * gate
        share = tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * square))
        slope = 1.5957691216057308 * (1.0 + 0.134145 * square)
    else:
        share = tl.sigmoid(gate)
        slope = 1.0
    rest = share * (1.0 - share)  # 0 where the gate or its slope may be infinite
    steep = share + tl.where(rest > 0.0, gate * rest * slope, 0.0)
    dy = dy.to(tl.float32)
    tl.store(dup_ptr + at, dy * (gate * share), mask=inside)
    tl.store(dgate_ptr + at, dy * up * steep, mask=inside)


def launch(gradient, gate, up, dgate, dup, cols, stride, flat, gelu):
    block = NUM_WARPS * 32 * ACCESSES * 16 // gradient.element_size()
    blocks = triton.cdiv(cols, block)
    gated_backward_kernel[(blocks,) if flat else (gradient.numel() // cols, blocks)](
        gradient, gate, up, dgate, dup, cols, stride,
        FLAT=flat, GELU=gelu, BLOCK=block, num_warps=NUM_WARPS,
    )  # fmt: skip


def gated_backward(gradient, gate, up):
    gradient, gate, up = gradient.contiguous(), gate.contiguous(), up.contiguous()
    dgate, dup = torch.empty_like(gate), torch.empty_like(up)
    launch(gradient, gate, up, dgate, dup, gate.numel(), gate.numel(), True, False)
    return dgate, dup


def halves_backward(gradient, x, gelu):
    gradient, x = gradient.contiguous(), x.contiguous()
    cols = x.shape[-1] // 2
    dx = torch.empty_like(x)
    launch(gradient, x, x[..., cols:], dx, dx[..., cols:], cols, 2 * cols, False, gelu)
    return dx
