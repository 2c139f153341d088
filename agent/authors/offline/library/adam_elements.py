# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, E501, N803
# says: all four operands read and three results written once, constants folded on the host in float64
# task: adam_step = adam(weight, gradient, first, second, self.step, self.rate, self.decay, self.eps, self.beta1, self.beta2)
# search: BLOCK = 256 512 1024 2048 4096 8192
# search: NUM_WARPS = 1 2 4 8 16 32
"""One AdamW step, element by element: seven streams of memory, one 16-byte access of each a thread, many small programs.

No hints to the cache although nothing is read again: they cost 3-8 % in SwiGLU on an H200.

Corrections for the first steps are the host's: it divides by 1 - beta^step once, in double precision.
"""

import torch
import triton
import triton.language as tl

BLOCK = 1024
NUM_WARPS = 8


@triton.jit
def adam_kernel(
    w_ptr, g_ptr, m_ptr, v_ptr, w_out_ptr, m_out_ptr, v_out_ptr, size,
    kept, rate, eps, mean_scale, square_scale, beta1, beta2, rest1, rest2, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    g = tl.load(g_ptr + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + at, mask=inside, other=0.0)
    m = tl.load(m_ptr + at, mask=inside, other=0.0)
    v = tl.load(v_ptr + at, mask=inside, other=0.0)
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    step = rate * (m * mean_scale) / (tl.sqrt_rn(v * square_scale) + eps)
    tl.store(w_out_ptr + at, w * kept - step, mask=inside)
    tl.store(m_out_ptr + at, m, mask=inside)
    tl.store(v_out_ptr + at, v, mask=inside)


def adam(weight, gradient, first, second, step, rate, decay, eps, beta1, beta2):
    w, m, v = torch.empty_like(weight), torch.empty_like(first), torch.empty_like(second)
    size = weight.numel()
    adam_kernel[(triton.cdiv(size, BLOCK),)](
        weight, gradient, first, second, w, m, v, size,
        1 - rate * decay, rate, eps, 1 / (1 - beta1**step), 1 / (1 - beta2**step), beta1, beta2, 1 - beta1, 1 - beta2,
        BLOCK=BLOCK, num_warps=NUM_WARPS,
    )  # fmt: skip
    return w, m, v
