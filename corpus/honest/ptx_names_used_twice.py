"""A reader without scopes refuses this: registers, labels and variables of the same names in blocks of their own,
labels even before they are declared."""

import torch
from torch import nn

from kerneltune import PtxKernel

SPECIMEN = {
    "id": "F-ptx-05",
    "task": "h_relu",
    "expect": ["checked", "unchecked"],
}

relu = PtxKernel(
    r"""
.version 8.0
.target sm_90
.address_size 64

.visible .entry relu(.param .u64 y, .param .u64 x, .param .u32 n)
.reqntid 128
{
    .reg .pred %p<4>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<12>;
    .reg .f32 %f<12>;
    ld.param.u64 %rd1, [y];
    ld.param.u64 %rd2, [x];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r2, 128, %r3;
    setp.ge.u32 %p1, %r4, %r1;
    mul.wide.u32 %rd3, %r4, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    @%p1 bra done;
    {
    .reg .f32 v;
    .reg .pred p;
    ld.global.f32 v, [%rd5];
    setp.ge.f32 p, v, 0f00000000;
    @p bra skip;
    mov.f32 v, 0f00000000;
skip:
    mov.f32 %f1, v;
    }
    {
    .reg .b32 v;
    .reg .pred p;
    mov.b32 v, 0;
again:
    add.u32 v, v, 1;
    setp.lt.u32 p, v, 3;
    @p bra again;
    bra skip;
skip:
    st.global.f32 [%rd4], %f1;
    }
done:
    ret;
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        relu[(x.numel() + 127) // 128](y, x, x.numel())
        return y
