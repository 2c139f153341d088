# softmax: attempt 5 of run 20261121-172323-softmax-b2de (16 warps)
#
# Verdict: correct. right; 0.996 times the speed of compile-max
# Time: median 131.01 us [130.98, 131.04], cold L2, judged
# Speed-up over compile-max: 0.996x [0.996, 0.997] (130.49 us)
# Speed-up over compile: 1.139x [1.138, 1.139] (149.19 us)
# Speed-up over eager: 2.103x [2.102, 2.104] (275.52 us)
# Kernel softmax_kernel: 39 registers, 0 bytes spilled, 64 bytes shared, occupancy 0.75
# Where: NVIDIA H200; compiled for sm_90; kerneltune not installed, torch 2.11.0, triton 3.6.0
# Task: sha256 f99209d7ed76f8f9, precision float32
# Receipt: receipts/5.json; repeat it with: optimize verify 20261121-172323-softmax-b2de/5
#
# Use: from best import ModelNew; ModelNew takes the constructor and forward arguments of the task's Model.

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=float("-inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=16)
        return y
