# swiglu: attempt 3 of run 20261122-040321-swiglu-da5e (8 elements an access, several in flight)
#
# Verdict: correct. right; 0.900 times the speed of compile-max
# Time: median 138.33 us [138.22, 138.40], cold L2, confirmed
# Speed-up over compile-max: 0.900x [0.899, 0.901] (124.49 us)
# Speed-up over compile: 0.900x [0.899, 0.901] (124.51 us)
# Speed-up over eager: 1.561x [1.559, 1.563] (215.95 us)
# Kernel swiglu_wide: 32 registers, 0 bytes spilled, 0 bytes shared, occupancy 1.00
# Where: NVIDIA H200; compiled for sm_90; kerneltune not installed, torch 2.11.0, triton 3.6.0
# Task: sha256 274d9544df9cb57a, precision float32
# Receipt: receipts/3.json; repeat it with: optimize verify 20261122-040321-swiglu-da5e/3
#
# Use: from best import ModelNew; ModelNew takes the constructor and forward arguments of the task's Model.

import torch
from torch import nn

from tools.ptx import PtxKernel


ONE = r"""
.version 8.0
.target sm_90
.address_size 64

.visible .entry swiglu(.param .u64 y, .param .u64 gate, .param .u64 up, .param .u32 n)
.reqntid 256
{
    .reg .pred %p;
    .reg .b16  %h;
    .reg .b32  %n, %i, %block;
    .reg .b64  %at;
    .reg .f32  %g, %u, %e;

    ld.param.u32       %n, [n];
    mov.u32            %block, %ctaid.x;
    mov.u32            %i, %tid.x;
    mad.lo.u32         %i, %block, 256, %i;
    setp.ge.u32        %p, %i, %n;
    @%p ret;
//: for register, tensor in (("g", "gate"), ("u", "up"))
    ld.param.u64       %at, [${tensor}];
    mad.wide.u32       %at, %i, ${SIZE}, %at;
//: if SIZE == 4
    ld.global.f32      %${register}, [%at];
//: else
    ld.global.b16      %h, [%at];
    cvt.f32.bf16       %${register}, %h;
//: endif
//: endfor
    mul.f32            %e, %g, 0fBFB8AA3B;
    ex2.approx.ftz.f32 %e, %e;
    add.f32            %e, %e, 0f3F800000;
    rcp.approx.ftz.f32 %e, %e;
    mul.f32            %g, %g, %e;
    mul.f32            %g, %g, %u;
    ld.param.u64       %at, [y];
    mad.wide.u32       %at, %i, ${SIZE}, %at;
//: if SIZE == 4
    st.global.f32      [%at], %g;
//: else
    cvt.rn.bf16.f32    %h, %g;
    st.global.b16      [%at], %h;
//: endif
    ret;
}
"""

# 16 bytes an access of bfloat16, UNROLL accesses a thread and tensor in flight. n is a multiple of 8.
WIDE = r"""
.version 8.0
.target sm_90
.address_size 64

.visible .entry swiglu_wide(.param .u64 y, .param .u64 gate, .param .u64 up, .param .u32 n)
.reqntid ${block}
{
    .reg .pred %inside<${UNROLL}>;
    .reg .b32  %n, %i, %tile, %at, %low, %high, %a, %b, %e, %g<${4 * UNROLL}>, %u<${4 * UNROLL}>;
    .reg .b64  %gate, %up, %y;

    ld.param.u32       %n, [n];
    shr.u32            %n, %n, 3;
    mov.u32            %tile, %ctaid.x;
    mov.u32            %i, %tid.x;
    mad.lo.u32         %i, %tile, ${block * UNROLL}, %i;
    ld.param.u64       %gate, [gate];
    ld.param.u64       %up, [up];
    ld.param.u64       %y, [y];
    mad.wide.u32       %gate, %i, 16, %gate;
    mad.wide.u32       %up, %i, 16, %up;
    mad.wide.u32       %y, %i, 16, %y;
//: for c in range(UNROLL)
//: set k = 4 * c
    add.u32            %at, %i, ${c * block};
    setp.lt.u32        %inside${c}, %at, %n;
    @%inside${c} ld.global.nc.L1::no_allocate.L2::256B.v4.b32 {%g${k}, %g${k + 1}, %g${k + 2}, %g${k + 3}}, [%gate+${16 * block * c}];
    @%inside${c} ld.global.nc.L1::no_allocate.L2::256B.v4.b32 {%u${k}, %u${k + 1}, %u${k + 2}, %u${k + 3}}, [%up+${16 * block * c}];
//: endfor
//: for c in range(UNROLL)
//: for k in range(4 * c, 4 * c + 4)
    shl.b32            %low, %g${k}, 16;
    and.b32            %high, %g${k}, 0xFFFF0000;
    shl.b32            %a, %u${k}, 16;
    and.b32            %b, %u${k}, 0xFFFF0000;
//: for g, u in (("%low", "%a"), ("%high", "%b"))
    mul.f32            %e, ${g}, 0fBFB8AA3B;
    ex2.approx.ftz.f32 %e, %e;
    add.f32            %e, %e, 0f3F800000;
    rcp.approx.ftz.f32 %e, %e;
    mul.f32            ${g}, ${g}, %e;
    mul.f32            ${g}, ${g}, ${u};
//: endfor
    cvt.rn.bf16x2.f32  %g${k}, %high, %low;
//: endfor
//: set k = 4 * c
    @%inside${c} st.global.cs.v4.b32 [%y+${16 * block * c}], {%g${k}, %g${k + 1}, %g${k + 2}, %g${k + 3}};
//: endfor
    ret;
}
"""
wide = PtxKernel(WIDE, configs=[{"block": 256, "UNROLL": 2}, {"block": 512, "UNROLL": 1}, {"block": 256, "UNROLL": 4}])


class ModelNew(nn.Module):
    def forward(self, gate, up):
        gate, up = gate.contiguous(), up.contiguous()
        y, n = torch.empty_like(gate), gate.numel()
        if gate.dtype == torch.bfloat16 and n % 8 == 0:
            wide[lambda config: -(-n // (8 * config["block"] * config["UNROLL"]))](y, gate, up, n)
            return y
        one = PtxKernel(ONE, configs=[{"SIZE": gate.element_size()}])
        one[((n + 255) // 256,)](y, gate, up, n)
        return y
