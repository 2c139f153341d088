"""Kernels in the style that TorchInductor writes, on its own helper functions."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, N803

import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_helpers import libdevice
from torch._inductor.runtime.triton_helpers import math as tl_math


@triton.jit
def pointwise_gelu(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tmp0 = tl.load(in_ptr0 + (xindex), xmask).to(tl.float32)
    tmp1 = tl.load(in_ptr1 + (xindex % 64), xmask, eviction_policy="evict_last").to(tl.float32)
    tmp2 = tmp0 + tmp1
    tmp3 = tl.full([1], 0.7071067811865476, tl.float32)
    tmp4 = libdevice.erf(tmp2 * tmp3)
    tl.store(out_ptr0 + (xindex), tmp2 * 0.5 * (tmp4 + 1.0), xmask)


@triton.jit
def persistent_softmax(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_mask = r0_index < r0_numel
    tmp0 = tl.load(in_ptr0 + (r0_index + r0_numel * xindex), r0_mask & xmask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(r0_mask & xmask, tmp1, float("-inf"))
    tmp4 = triton_helpers.max2(tmp3, 1)[:, None].to(tl.float32)
    tmp6 = tl_math.exp(tmp0 - tmp4)
    tmp7 = tl.where(r0_mask & xmask, tl.broadcast_to(tmp6, [XBLOCK, R0_BLOCK]), 0)
    tmp9 = tl.sum(tmp7, 1)[:, None].to(tl.float32)
    tl.store(out_ptr0 + (r0_index + r0_numel * xindex), tmp6 / tmp9, r0_mask & xmask)


@triton.jit
def looped_welford(in_ptr0, out_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    mean = tl.zeros([XBLOCK, R0_BLOCK], tl.float32)
    m2 = tl.zeros([XBLOCK, R0_BLOCK], tl.float32)
    weight = tl.zeros([XBLOCK, R0_BLOCK], tl.float32)
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        tmp0 = tl.load(in_ptr0 + (r0_index + r0_numel * xindex), r0_mask & xmask, eviction_policy="evict_first")
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        mean_next, m2_next, weight_next = triton_helpers.welford_reduce(tmp1, mean, m2, weight, r0_offset == 0)
        mean = tl.where(r0_mask & xmask, mean_next, mean)
        m2 = tl.where(r0_mask & xmask, m2_next, m2)
        weight = tl.where(r0_mask & xmask, weight_next, weight)
    tmp2, tmp3, _ = triton_helpers.welford(mean, m2, weight, 1)
    tl.store(out_ptr0 + (xindex), tmp2[:, None], xmask)
    tl.store(out_ptr1 + (xindex), libdevice.rsqrt(tmp3[:, None] / r0_numel + 1e-05), xmask)


@triton.jit
def index_reductions(in_ptr0, out_ptr0, out_ptr1, out_ptr2, xnumel, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    tmp0 = tl.load(in_ptr0 + (r0_index + R0_BLOCK * xindex), xmask, other=0.0)
    tmp1 = tl.broadcast_to(r0_index, [XBLOCK, R0_BLOCK])
    _, tmp2 = triton_helpers.max_with_index(tmp0, tmp1, 1)
    tl.store(out_ptr0 + (xindex), tmp2[:, None], xmask)
    tmp3 = triton_helpers.any((tmp0 > 2.0).to(tl.int1), 1)[:, None]
    tl.store(out_ptr1 + (xindex), tmp3.to(tl.int32), xmask)
    _, tmp5 = triton_helpers.sort_with_index(tmp0, tmp1.to(tl.int16), None, 1, stable=True, descending=False)
    tl.store(out_ptr2 + (r0_index + R0_BLOCK * xindex), tmp5.to(tl.int32), xmask)


@triton.jit
def _combine(arg0_0, arg1_0):
    return arg0_0 * arg1_0


@triton.jit
def split_cumprod(in_ptr0, out_ptr0, xnumel, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    tmp0 = tl.load(in_ptr0 + (r0_index + R0_BLOCK * xindex), xmask, other=0.0)
    (tmp1,) = tl.associative_scan((tmp0.to(tl.float32),), 1, _combine)
    tl.store(out_ptr0 + (r0_index + R0_BLOCK * xindex), tmp1, xmask)
