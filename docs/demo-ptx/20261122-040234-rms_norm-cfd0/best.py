# rms_norm: attempt 4 of run 20261122-040234-rms_norm-cfd0 (the row in registers, 16-byte accesses, hints)
#
# Verdict: correct. right; 0.912 times the speed of compile-max
# Time: median 70.50 us [70.42, 70.51], cold L2, confirmed
# Speed-up over compile-max: 0.912x [0.912, 0.912] (64.27 us)
# Speed-up over compile: 1.024x [1.023, 1.025] (72.17 us)
# Speed-up over eager: 1.123x [1.121, 1.125] (79.18 us)
# Kernel rms_norm_row: 32 registers, 0 bytes spilled, 32 bytes shared, occupancy 1.00
# Where: NVIDIA H200; compiled for sm_90; kerneltune not installed, torch 2.11.0, triton 3.6.0
# Task: sha256 d6c2e427f680831a, precision float32
# Receipt: receipts/4.json; repeat it with: optimize verify 20261122-040234-rms_norm-cfd0/4
#
# Use: from best import ModelNew; ModelNew takes the constructor and forward arguments of the task's Model.

import torch
from torch import nn

from tools.ptx import PtxKernel


TEXT = r"""
.version 8.0
.target sm_90
.address_size 64

.visible .entry rms_norm(.param .u64 y, .param .u64 x, .param .u64 w, .param .u32 cols, .param .f32 inverse, .param .f32 eps)
.reqntid 256
{
    .reg .pred %p;
    .reg .b16  %h;
    .reg .b32  %cols, %row, %i, %at, %part;
    .reg .b64  %x, %y, %w, %from, %place;
    .reg .f32  %v, %g, %s, %t, %inverse, %eps;
    .shared .align 4 .b8 part[32];

    ld.param.u32       %cols, [cols];
    ld.param.u64       %x, [x];
    ld.param.u64       %y, [y];
    ld.param.u64       %w, [w];
    ld.param.f32       %inverse, [inverse];
    ld.param.f32       %eps, [eps];
    mov.u32            %row, %ctaid.x;
    mul.wide.u32       %from, %row, %cols;
    shl.b64            %from, %from, 1;
    add.u64            %x, %x, %from;
    add.u64            %y, %y, %from;

    mov.f32            %s, 0f00000000;
    mov.u32            %i, %tid.x;
square:
    setp.ge.u32        %p, %i, %cols;
    @%p bra            squared;
    mad.wide.u32       %place, %i, 2, %x;
    ld.global.b16      %h, [%place];
    cvt.f32.bf16       %v, %h;
    fma.rn.f32         %s, %v, %v, %s;
    add.u32            %i, %i, 256;
    bra                square;
squared:
//: for step in (16, 8, 4, 2, 1)
    shfl.sync.bfly.b32 %t, %s, ${step}, 31, -1;
    add.f32            %s, %s, %t;
//: endfor
    mov.u32            %i, %tid.x;
    mov.u32            %part, part;
    shr.u32            %at, %i, 5;
    mad.lo.u32         %at, %at, 4, %part;
    and.b32            %row, %i, 31;
    setp.eq.u32        %p, %row, 0;
    @%p st.shared.f32  [%at], %s;
    bar.sync           0;
    mov.f32            %s, 0f00000000;
//: for warp in range(8)
    ld.shared.f32      %t, [part+${4 * warp}];
    add.f32            %s, %s, %t;
//: endfor
    fma.rn.f32         %s, %s, %inverse, %eps;
    rsqrt.approx.ftz.f32 %s, %s;

scale:
    setp.ge.u32        %p, %i, %cols;
    @%p bra            done;
    mad.wide.u32       %place, %i, 2, %x;
    ld.global.b16      %h, [%place];
    cvt.f32.bf16       %v, %h;
    mad.wide.u32       %place, %i, 2, %w;
    ld.global.b16      %h, [%place];
    cvt.f32.bf16       %g, %h;
    mul.f32            %v, %v, %s;
    mul.f32            %v, %v, %g;
    cvt.rn.bf16.f32    %h, %v;
    mad.wide.u32       %place, %i, 2, %y;
    st.global.b16      [%place], %h;
    add.u32            %i, %i, 256;
    bra                scale;
done:
    ret;
}
"""
# float32 rows: the same text with wider elements
WIDE = TEXT.replace("%i, 2, %", "%i, 4, %").replace("%from, %from, 1;", "%from, %from, 2;")
for register in ("v", "g"):
    narrow = f"ld.global.b16      %h, [%place];\n    cvt.f32.bf16       %{register}, %h;"
    WIDE = WIDE.replace(narrow, f"ld.global.f32      %{register}, [%place];")
WIDE = WIDE.replace("    cvt.rn.bf16.f32    %h, %v;\n", "").replace("st.global.b16      [%place], %h", "st.global.f32      [%place], %v")
rms_norm = PtxKernel(TEXT, configs=[{"block": 256}])
rms_norm_wide = PtxKernel(WIDE, configs=[{"block": 256}])

# bfloat16 rows whose length 8 divides: 16 bytes an access, the row stays packed in registers between sum and scaling.
ROW = r"""
//: set pieces = (COLS // 8 + block - 1) // block
//: set full = COLS // 8 // block
.version 8.0
.target sm_90
.address_size 64

.visible .entry rms_norm_row(.param .u64 y, .param .u64 x, .param .u64 w, .param .f32 inverse, .param .f32 eps)
.reqntid ${block}
{
    .reg .pred %p, %inside;
    .reg .b32  %row, %i, %at, %part, %low, %high, %a, %b, %x<${4 * pieces}>, %w<${4 * pieces}>;
    .reg .b64  %xs, %y, %ws, %from;
    .reg .f32  %s, %t, %inverse, %eps;
    .shared .align 4 .b8 part[${block // 8}];

    ld.param.u64       %xs, [x];
    ld.param.u64       %y, [y];
    ld.param.u64       %ws, [w];
    ld.param.f32       %inverse, [inverse];
    ld.param.f32       %eps, [eps];
    mov.u32            %row, %ctaid.x;
    mov.u32            %i, %tid.x;
    mul.wide.u32       %from, %row, ${2 * COLS};
    add.u64            %xs, %xs, %from;
    add.u64            %y, %y, %from;
    mad.wide.u32       %xs, %i, 16, %xs;
    mad.wide.u32       %y, %i, 16, %y;
    mad.wide.u32       %ws, %i, 16, %ws;
    setp.lt.u32        %inside, %i, ${COLS // 8 - full * block};
//: for k in range(4 * full, 4 * pieces)
    mov.b32            %x${k}, 0;
    mov.b32            %w${k}, 0;
//: endfor
//: for name, hint in (("x", ".L1::no_allocate.L2::256B"), ("w", ""))
//: for c in range(pieces)
//: set k = 4 * c
    ${"@%inside " if c >= full}ld.global.nc${hint}.v4.b32 {%${name}${k}, %${name}${k + 1}, %${name}${k + 2}, %${name}${k + 3}}, [%${name}s+${16 * block * c}];
//: endfor
//: endfor

    mov.f32            %s, 0f00000000;
//: for k in range(4 * pieces)
    shl.b32            %low, %x${k}, 16;
    and.b32            %high, %x${k}, 0xFFFF0000;
    fma.rn.f32         %s, %low, %low, %s;
    fma.rn.f32         %s, %high, %high, %s;
//: endfor
//: for step in (16, 8, 4, 2, 1)
    shfl.sync.bfly.b32 %t, %s, ${step}, 31, -1;
    add.f32            %s, %s, %t;
//: endfor
    mov.u32            %part, part;
    shr.u32            %at, %i, 5;
    mad.lo.u32         %at, %at, 4, %part;
    and.b32            %row, %i, 31;
    setp.eq.u32        %p, %row, 0;
    @%p st.shared.f32  [%at], %s;
    bar.sync           0;
    mov.f32            %s, 0f00000000;
//: for warp in range(block // 32)
    ld.shared.f32      %t, [part+${4 * warp}];
    add.f32            %s, %s, %t;
//: endfor
    fma.rn.f32         %s, %s, %inverse, %eps;
    rsqrt.approx.ftz.f32 %s, %s;

//: for c in range(pieces)
//: for k in range(4 * c, 4 * c + 4)
    shl.b32            %low, %x${k}, 16;
    and.b32            %high, %x${k}, 0xFFFF0000;
    shl.b32            %a, %w${k}, 16;
    and.b32            %b, %w${k}, 0xFFFF0000;
    mul.f32            %low, %low, %s;
    mul.f32            %high, %high, %s;
    mul.f32            %low, %low, %a;
    mul.f32            %high, %high, %b;
    cvt.rn.bf16x2.f32  %x${k}, %high, %low;
//: endfor
//: set k = 4 * c
    ${"@%inside " if c >= full}st.global.cs.v4.b32 [%y+${16 * block * c}], {%x${k}, %x${k + 1}, %x${k + 2}, %x${k + 3}};
//: endfor
    ret;
}
"""


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        x, y, cols = x.contiguous(), torch.empty_like(x), x.shape[-1]
        grid = (x.numel() // cols,)
        if x.dtype == torch.bfloat16 and cols % 8 == 0 and cols <= 32768:
            blocks = [b for b in (256, 128, 512, 1024) if cols <= b * 32]
            row = PtxKernel(ROW, configs=[{"COLS": cols, "block": b} for b in blocks])
            row[grid](y, x, self.weight, 1.0 / cols, self.eps)
            return y
        kernel = rms_norm if x.dtype == torch.bfloat16 else rms_norm_wide
        kernel[grid](y, x, self.weight, cols, 1.0 / cols, self.eps)
        return y
