"""A check for .global and .const variables refuses this: memory that outlives a launch could hold answers. Honest:
both have values and nothing writes to them."""

import torch
from torch import nn

from kerneltune import PtxKernel

SPECIMEN = {
    "id": "F-ptx-02",
    "task": "h_relu",
    "expect": ["checked", "unchecked"],
}

relu = PtxKernel(
    r"""
.version 8.0
.target sm_90
.address_size 64
.global .align 8 .f32 table[2] = {0f00000000, 0f3F800000};
.const .align 4 .f32 bias = 0f00000000;

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
    mov.u64 %rd6, table;
    ld.global.f32 %f2, [%rd6+4];
    ld.const.f32 %f3, [bias];
    ld.global.f32 %f1, [%rd5];
    fma.rn.f32 %f1, %f1, %f2, %f3;
    max.f32 %f1, %f1, %f3;
    st.global.f32 [%rd4], %f1;
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
