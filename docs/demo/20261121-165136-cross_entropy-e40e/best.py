# cross_entropy: attempt 4 of run 20261121-165136-cross_entropy-e40e (blocks of 4096, 8 warps)
#
# Verdict: correct. right; 1.397 times the speed of compile-max
# Time: median 237.23 us [237.19, 237.27], cold L2, confirmed
# Speed-up over compile-max: 1.397x [1.397, 1.402] (331.32 us)
# Speed-up over compile: 1.505x [1.504, 1.510] (356.74 us)
# Speed-up over eager: 3.502x [3.499, 3.504] (830.48 us)
# Kernel loss_kernel: 31 registers, 0 bytes spilled, 32 bytes shared, occupancy 1.00
# Where: NVIDIA H200; compiled for sm_90; kerneltune not installed, torch 2.11.0, triton 3.6.0
# Task: sha256 736780f740368bff, precision float32
# Receipt: receipts/4.json; repeat it with: optimize verify 20261121-165136-cross_entropy-e40e/4
#
# Use: from best import ModelNew; ModelNew takes the constructor and forward arguments of the task's Model.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def loss_kernel(x, t, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = 0.0
    top = float("-inf")
    for start in range(0, cols, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * cols + i, mask=i < cols, other=float("-inf")).to(tl.float32)
        new = tl.maximum(top, tl.max(v, 0))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(v - new), 0)
        top = new
    picked = tl.load(x + row * cols + tl.load(t + row)).to(tl.float32)
    tl.store(y + row, tl.log(total) + top - picked)


class ModelNew(nn.Module):
    def forward(self, logits, target):
        y = torch.empty(logits.shape[0], dtype=logits.dtype, device=logits.device)
        loss_kernel[(logits.shape[0],)](logits, target, y, logits.shape[1], BLOCK=4096, num_warps=8)
        return y
