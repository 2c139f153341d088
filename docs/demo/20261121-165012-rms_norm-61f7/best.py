# rms_norm: attempt 5 of run 20261121-165012-rms_norm-61f7 (one pass, 8 warps)
#
# Verdict: correct. right; 0.968 times the speed of compile-max
# Time: median 66.38 us [66.37, 66.44], cold L2, confirmed
# Speed-up over compile-max: 0.968x [0.967, 0.969] (64.28 us)
# Speed-up over compile: 1.087x [1.086, 1.087] (72.18 us)
# Speed-up over eager: 1.191x [1.189, 1.193] (79.04 us)
# Kernel rms_norm_kernel: 32 registers, 0 bytes spilled, 32 bytes shared, occupancy 1.00
# Where: NVIDIA H200; compiled for sm_90; kerneltune not installed, torch 2.11.0, triton 3.6.0
# Task: sha256 d6c2e427f680831a, precision float32
# Receipt: receipts/5.json; repeat it with: optimize verify 20261121-165012-rms_norm-61f7/5
#
# Use: from best import ModelNew; ModelNew takes the constructor and forward arguments of the task's Model.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def rms_norm_kernel(x, w, y, cols, eps, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * cols
    i = tl.arange(0, BLOCK)
    v = tl.load(x + at + i, mask=i < cols, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, 0) / cols + eps)
    g = tl.load(w + i, mask=i < cols, other=0.0)
    tl.store(y + at + i, v * scale * g, mask=i < cols)


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(cols))

    def forward(self, x):
        y = torch.empty_like(x)
        rms_norm_kernel[(x.shape[0],)](x, self.weight, y, x.shape[1], self.eps, BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
        return y
