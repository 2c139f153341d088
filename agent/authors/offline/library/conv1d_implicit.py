# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, E501, N803
# says: convolution as matrix products over shifted reads: one for each step of the window, nothing is unfolded in memory
# fits: conv1d(x, layer, PRECISION) = Conv1d(x, layer) where x: B C T
# search: BLOCK_M = 32 64 128
# search: BLOCK_N = 64 128 256
# search: BLOCK_K = 16 32 64
# search: NUM_WARPS = 4 8
# search: NUM_STAGES = 2 3 4
"""Convolution along one dimension as implicit matrix products.

For each step w of the window, weight[:, :, w] times x shifted by w is a product over channels; all are added in one
accumulator. Shifted reads overlap, so all but the first come from the caches. Groups have products of their own.
"""

import torch
import triton
import triton.language as tl

BLOCK_M = 64  # output channels
BLOCK_N = 128  # places
BLOCK_K = 32  # input channels
NUM_WARPS = 4
NUM_STAGES = 3


@triton.jit
def conv1d_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, channels, length, outputs, places, inner, stride, padding, dilation,
    WIDTH: tl.constexpr, GROUPS: tl.constexpr, BIAS: tl.constexpr, INPUT_PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(2) // GROUPS).to(tl.int64)
    group = tl.program_id(2) % GROUPS
    each = outputs // GROUPS
    o = tl.program_id(1) * BM + tl.arange(0, BM)
    place = tl.program_id(0) * BN + tl.arange(0, BN)
    own = group * each + o  # the output channel among all
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(tl.cdiv(inner, BK) * WIDTH):
        w = step % WIDTH
        c = step // WIDTH * BK + tl.arange(0, BK)
        at = place * stride - padding + w * dilation
        weight_at = (own[:, None].to(tl.int64) * inner + c[None, :]) * WIDTH + w
        x_at = (batch * channels + group * inner + c[:, None]) * length + at[None, :]
        p = tl.load(weight_ptr + weight_at, mask=(o[:, None] < each) & (c[None, :] < inner), other=0.0)
        inside = (c[:, None] < inner) & (at[None, :] >= 0) & (at[None, :] < length)
        q = tl.load(x_ptr + x_at, mask=inside, other=0.0)
        acc = tl.dot(p, q, acc, input_precision=INPUT_PRECISION)
    if BIAS:
        acc += tl.load(bias_ptr + own, mask=o < each, other=0.0).to(tl.float32)[:, None]
    y_at = (batch * outputs + own[:, None]) * places + place[None, :]
    tl.store(y_ptr + y_at, acc.to(y_ptr.dtype.element_ty), mask=(o[:, None] < each) & (place[None, :] < places))


def conv1d(x, layer, precision):
    x, weight = x.contiguous(), layer.weight
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise NotImplementedError("padding with zeros only, as many as a number says")
    batch, channels, length = x.shape
    outputs, inner, width = weight.shape
    (stride,), (padding,), (dilation,) = layer.stride, layer.padding, layer.dilation
    places = (length + 2 * padding - dilation * (width - 1) - 1) // stride + 1
    y = torch.empty((batch, outputs, places), dtype=x.dtype, device=x.device)
    bm = min(BLOCK_M, max(16, triton.next_power_of_2(outputs // layer.groups)))
    bn = min(BLOCK_N, max(16, triton.next_power_of_2(places)))
    bk = min(BLOCK_K, max(16, triton.next_power_of_2(inner)))
    grid = (triton.cdiv(places, bn), triton.cdiv(outputs // layer.groups, bm), batch * layer.groups)
    conv1d_kernel[grid](
        x, weight, layer.bias, y, channels, length, outputs, places, inner, stride, padding, dilation,
        WIDTH=width, GROUPS=layer.groups, BIAS=layer.bias is not None,
        INPUT_PRECISION="tf32" if precision == "tf32_ok" else "tf32x3", BM=bm, BN=bn, BK=bk,
        num_warps=NUM_WARPS, num_stages=NUM_STAGES,
    )  # fmt: skip
    return y
