# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: single pass: whole rows in registers, read once, few rows a program
# fits: rms_norm(x, weight, eps) = F.rms_norm(x, _, weight, eps) where x: ... C, weight: C<65537
# search: ROWS = 1 2 4
# search: NUM_WARPS = 4 8 16 32
# search: LEAVES_LAST = 0 1
# search: FULL = 0 1
"""RMS normalisation over the last dimension: a row is read once and stays in registers.

On an H200, 16384 x 4096 of bfloat16: 65.4-65.8 us with a row by 8 warps and loads as they come, 66.6 by 4, 71.6 by
16. The same in PTX took 64.0 where the L2 is told to let go last of rows and weight (evict_last), 65.6 without; two
rows by 16 warps in TorchInductor's form, with that policy, 64.3. FULL allows 32 registers a thread,
so that eight rows instead of six fit a multiprocessor: not timed.
"""

import torch
import triton
import triton.language as tl

ROWS = 1
NUM_WARPS = 8
LEAVES_LAST = 1
FULL = 0


@triton.jit
def rms_norm_kernel(
    x_ptr, weight_ptr, y_ptr, rows, cols, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr, POLICY: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < cols)
    x = tl.load(x_ptr + row * cols + column, mask=inside, other=0.0, eviction_policy=POLICY).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / cols + eps)
    tl.store(y_ptr + row * cols + column, x * scale[:, None] * weight, mask=inside)


def rms_norm(x, weight, eps):
    x = x.contiguous()
    y = torch.empty_like(x)
    cols = x.shape[-1]
    block = triton.next_power_of_2(cols)
    rows = x.numel() // cols
    height = max(1, min(ROWS, 16384 // block))
    warps = max(NUM_WARPS, min(32, height * block // 2048))  # at most 64 elements of wide rows a thread
    rms_norm_kernel[(triton.cdiv(rows, height),)](
        x, weight, y, rows, cols, eps, ROWS=height, BLOCK=block, POLICY="evict_last" if LEAVES_LAST else "",
        num_warps=warps, maxnreg=32 if FULL and height * block <= 512 * warps else None,
    )  # fmt: skip
    return y
