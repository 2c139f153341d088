# softmax: attempt 3 of run 20261122-040152-softmax-4b88 (the row in registers, 16-byte loads, one barrier for maximum and sum)
#
# Verdict: correct. right; 1.003 times the speed of compile-max
# Time: median 129.30 us [129.21, 129.40], cold L2, confirmed
# Speed-up over compile-max: 1.003x [1.002, 1.004] (129.58 us)
# Speed-up over compile: 1.147x [1.146, 1.148] (148.34 us)
# Speed-up over eager: 2.121x [2.120, 2.124] (274.35 us)
# Kernel softmax_row: 32 registers, 0 bytes spilled, 128 bytes shared, occupancy 1.00
# Where: NVIDIA H200; compiled for sm_90; kerneltune not installed, torch 2.11.0, triton 3.6.0
# Task: sha256 f99209d7ed76f8f9, precision float32
# Receipt: receipts/3.json; repeat it with: optimize verify 20261122-040152-softmax-4b88/3
#
# Use: from best import ModelNew; ModelNew takes the constructor and forward arguments of the task's Model.

import torch
from torch import nn

from tools.ptx import PtxKernel


softmax = PtxKernel(r"""
.version 8.0
.target sm_90
.address_size 64

.visible .entry softmax(.param .u64 y, .param .u64 x, .param .u32 cols)
.reqntid 32
{
    .reg .pred %p;
    .reg .b32  %cols, %row, %i;
    .reg .b64  %x, %y, %at, %from;
    .reg .f32  %v, %m, %s, %t;

    // a warp a row
    ld.param.u32       %cols, [cols];
    ld.param.u64       %x, [x];
    ld.param.u64       %y, [y];
    mov.u32            %row, %ctaid.x;
    mul.wide.u32       %from, %row, %cols;
    shl.b64            %from, %from, 2;
    add.u64            %x, %x, %from;
    add.u64            %y, %y, %from;

    // the maximum
    mov.f32            %m, 0fFF7FFFFF;
    mov.u32            %i, %tid.x;
highest:
    setp.ge.u32        %p, %i, %cols;
    @%p bra            found;
    mad.wide.u32       %at, %i, 4, %x;
    ld.global.f32      %v, [%at];
    max.f32            %m, %m, %v;
    add.u32            %i, %i, 32;
    bra                highest;
found:
//: for step in (16, 8, 4, 2, 1)
    shfl.sync.bfly.b32 %t, %m, ${step}, 31, -1;
    max.f32            %m, %m, %t;
//: endfor

    // the sum of exponentials
    mov.f32            %s, 0f00000000;
    mov.u32            %i, %tid.x;
sum:
    setp.ge.u32        %p, %i, %cols;
    @%p bra            summed;
    mad.wide.u32       %at, %i, 4, %x;
    ld.global.f32      %v, [%at];
    sub.f32            %v, %v, %m;
    mul.f32            %v, %v, 0f3FB8AA3B;
    ex2.approx.ftz.f32 %v, %v;
    add.f32            %s, %s, %v;
    add.u32            %i, %i, 32;
    bra                sum;
summed:
//: for step in (16, 8, 4, 2, 1)
    shfl.sync.bfly.b32 %t, %s, ${step}, 31, -1;
    add.f32            %s, %s, %t;
//: endfor
    rcp.approx.ftz.f32 %s, %s;

    // the answer
    mov.u32            %i, %tid.x;
write:
    setp.ge.u32        %p, %i, %cols;
    @%p bra            done;
    mad.wide.u32       %at, %i, 4, %x;
    ld.global.f32      %v, [%at];
    sub.f32            %v, %v, %m;
    mul.f32            %v, %v, 0f3FB8AA3B;
    ex2.approx.ftz.f32 %v, %v;
    mul.f32            %v, %v, %s;
    mad.wide.u32       %at, %i, 4, %y;
    st.global.f32      [%at], %v;
    add.u32            %i, %i, 32;
    bra                write;
done:
    ret;
}
""", configs=[{"block": 32}])

ROW = r"""
//: set vectors = COLS // VEC
//: set pieces = (vectors + block - 1) // block
//: set full = vectors // block
//: set width = ".v4" if VEC == 4 else ""
//: macro values(c)
${"{%%v%d, %%v%d, %%v%d, %%v%d}" % (4 * c, 4 * c + 1, 4 * c + 2, 4 * c + 3) if VEC == 4 else "%v" ~ c}
//:- endmacro
.version 8.0
.target sm_90
.address_size 64

.visible .entry softmax_row(.param .u64 y, .param .u64 x)
.reqntid ${block}
{
    .reg .pred %p, %inside;
    .reg .b32  %row, %i, %lane, %warp, %part;
    .reg .b64  %x, %y, %from;
    .reg .f32  %m, %s, %t, %own, %v<${pieces * VEC}>;
    .shared .align 8 .b8 part[${block // 4}];            // (maximum, sum) of each warp

    ld.param.u64       %x, [x];
    ld.param.u64       %y, [y];
    mov.u32            %row, %ctaid.x;
    mov.u32            %i, %tid.x;
    mul.wide.u32       %from, %row, ${4 * COLS};
    add.u64            %x, %x, %from;
    add.u64            %y, %y, %from;
    mad.wide.u32       %x, %i, ${4 * VEC}, %x;
    mad.wide.u32       %y, %i, ${4 * VEC}, %y;

    // all loads first; what is beyond the end counts as -inf
//: if full < pieces
    setp.lt.u32        %inside, %i, ${vectors - full * block};
//: for k in range(full * VEC, pieces * VEC)
    mov.f32            %v${k}, 0fFF800000;
//: endfor
//: endif
//: for c in range(pieces)
    ${"@%inside " if c >= full}ld.global.nc${width}.f32 ${values(c)}, [%x+${4 * VEC * block * c}];
//: endfor

    // each warp by itself
    mov.f32            %m, 0fFF7FFFFF;
//: for k in range(pieces * VEC)
    max.f32            %m, %m, %v${k};
//: endfor
//: for step in (16, 8, 4, 2, 1)
    shfl.sync.bfly.b32 %t, %m, ${step}, 31, -1;
    max.f32            %m, %m, %t;
//: endfor
    mov.f32            %s, 0f00000000;
//: for k in range(pieces * VEC)
    sub.f32            %v${k}, %v${k}, %m;
    mul.f32            %v${k}, %v${k}, 0f3FB8AA3B;
    ex2.approx.ftz.f32 %v${k}, %v${k};
    add.f32            %s, %s, %v${k};
//: endfor
//: for step in (16, 8, 4, 2, 1)
    shfl.sync.bfly.b32 %t, %s, ${step}, 31, -1;
    add.f32            %s, %s, %t;
//: endfor

    // one barrier: the warps tell each other their maxima and sums
    mov.f32            %own, %m;
    and.b32            %lane, %i, 31;
    shr.u32            %warp, %i, 5;
    mov.u32            %part, part;
    mad.lo.u32         %warp, %warp, 8, %part;
    setp.eq.u32        %p, %lane, 0;
    @%p st.shared.v2.f32 [%warp], {%m, %s};
    bar.sync           0;
    and.b32            %lane, %lane, ${block // 32 - 1};
    mad.lo.u32         %lane, %lane, 8, %part;
    ld.shared.v2.f32   {%m, %s}, [%lane];
//: for step in (16, 8, 4, 2, 1) if step < block // 32
    shfl.sync.bfly.b32 %t, %m, ${step}, 31, -1;
    max.f32            %m, %m, %t;
//: endfor
    ld.shared.f32      %t, [%lane];
    sub.f32            %t, %t, %m;
    mul.f32            %t, %t, 0f3FB8AA3B;
    ex2.approx.ftz.f32 %t, %t;
    mul.f32            %s, %s, %t;
//: for step in (16, 8, 4, 2, 1) if step < block // 32
    shfl.sync.bfly.b32 %t, %s, ${step}, 31, -1;
    add.f32            %s, %s, %t;
//: endfor
    rcp.approx.ftz.f32 %s, %s;
    sub.f32            %own, %own, %m;
    mul.f32            %own, %own, 0f3FB8AA3B;
    ex2.approx.ftz.f32 %own, %own;
    mul.f32            %s, %s, %own;

//: for k in range(pieces * VEC)
    mul.f32            %v${k}, %v${k}, %s;
//: endfor
//: for c in range(pieces)
    ${"@%inside " if c >= full}st.global.cs${width}.f32 [%y+${4 * VEC * block * c}], ${values(c)};
//: endfor
    ret;
}
"""


class ModelNew(nn.Module):
    def forward(self, x):
        cols = x.shape[-1]
        if cols > 32768 or x.dtype != torch.float32:
            return self.long(x)
        x = x.contiguous()
        y = torch.empty_like(x)
        vec = 4 if cols % 4 == 0 else 1
        blocks = [b for b in (512, 256, 1024, 128) if cols <= b * 64]
        row = PtxKernel(ROW, configs=[{"COLS": cols, "VEC": vec, "block": b} for b in blocks])
        row[(x.numel() // cols,)](y, x)
        return y

    def long(self, x):
        kind = x.dtype
        x = x.float().contiguous()
        y = torch.empty_like(x)
        softmax[(x.numel() // x.shape[-1],)](y, x, x.shape[-1])
        return y.to(kind)
