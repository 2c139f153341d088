# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803
# says: a channel's sequence in blocks: the steps before are read again from the L1 cache, not from memory
# task: causal_conv1d = causal_conv1d(x, self.weight, self.bias)
# search: BLOCK = 256 512 1024 2048 4096
# search: NUM_WARPS = 1 2 4 8
"""Causal depthwise convolution with bias and SiLU: each output needs WIDTH inputs, which lie side by side."""

import torch
import triton
import triton.language as tl

BLOCK = 1024
NUM_WARPS = 4


@triton.jit
def conv_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, channels, sequence, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # a channel of a batch
    channel = row % channels
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for w in tl.static_range(WIDTH):
        source = t - (WIDTH - 1) + w
        x = tl.load(x_ptr + row * sequence + source, mask=(source >= 0) & (source < sequence), other=0.0)
        total += x.to(tl.float32) * tl.load(weight_ptr + channel * WIDTH + w).to(tl.float32)
    total += tl.load(bias_ptr + channel).to(tl.float32)
    tl.store(y_ptr + row * sequence + t, total * tl.sigmoid(total), mask=t < sequence)


def causal_conv1d(x, weight, bias):
    x = x.contiguous()
    batch, channels, sequence = x.shape
    y = torch.empty_like(x)
    conv_kernel[(batch * channels, triton.cdiv(sequence, BLOCK))](
        x, weight, bias, y, channels, sequence, WIDTH=weight.shape[1], BLOCK=BLOCK, num_warps=NUM_WARPS
    )
    return y
