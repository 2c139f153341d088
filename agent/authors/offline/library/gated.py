# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: one read of each operand and one write, wide accesses, several elements a thread
# fits: gated(gate, up, False) = F.silu(gate) * up where gate: R C, up: R C
# fits: gated_halves(x, True) = F.gelu(x.chunk(2, dim=-1)[0], approximate="tanh") * x.chunk(2, dim=-1)[1]
# fits: gated_halves(x, False) = F.silu(x.chunk(2, dim=-1)[0]) * x.chunk(2, dim=-1)[1]
# search: BLOCK = 256 512 1024 2048 4096 8192
# search: NUM_WARPS = 1 2 4 8
"""SwiGLU and GeGLU: an activation of one operand times another, element by element.

A thread takes as many neighbouring elements as fill 16-byte accesses; nothing is read again, so the output is marked to
leave the cache first. Rows are the grid's first dimension: halves of a row need no division for their addresses.
"""

import torch
import triton
import triton.language as tl

BLOCK = 2048
NUM_WARPS = 4


@triton.jit
def gated_kernel(gate_ptr, up_ptr, y_ptr, cols, stride, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < cols
    gate = tl.load(gate_ptr + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * stride + column, mask=inside, other=0.0)
    if GELU:  # 1 + tanh(u) = 2 sigmoid(2 u)
        active = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        active = gate * tl.sigmoid(gate)
    # the activation is a tensor of the reference's: it has its dtype, and so has the product
    y = active.to(up.dtype) * up
    tl.store(y_ptr + row * cols + column, y, mask=inside, eviction_policy="evict_first")


def gated(gate, up, gelu):
    """Operands of one shape are one long row, cut into rows of a block each."""
    gate, up = gate.contiguous(), up.contiguous()
    y = torch.empty_like(gate)
    cols = gate.shape[-1]
    grid = (gate.numel() // cols, triton.cdiv(cols, BLOCK))
    gated_kernel[grid](gate, up, y, cols, cols, GELU=gelu, BLOCK=BLOCK, num_warps=NUM_WARPS)
    return y


def gated_halves(x, gelu):
    x = x.contiguous()
    cols = x.shape[-1] // 2
    y = torch.empty((*x.shape[:-1], cols), dtype=x.dtype, device=x.device)
    grid = (y.numel() // cols, triton.cdiv(cols, BLOCK))
    gated_kernel[grid](x, x[..., cols:], y, cols, 2 * cols, GELU=gelu, BLOCK=BLOCK, num_warps=NUM_WARPS)
    return y
