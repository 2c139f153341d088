"""A check that loads end where a tensor does refuses this. Honest: the last of its vectors reaches into the three
elements that the task's contract lets it read, and stores none of them."""

import torch
from torch import nn

from kerneltune import PtxKernel

SPECIMEN = {
    "id": "F-ptx-14",
    "task": "h_slack_relu",
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
    .reg .pred %p<6>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<12>;
    .reg .f32 %f<12>;
    ld.param.u64 %rd1, [y];
    ld.param.u64 %rd2, [x];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r2, 128, %r3;
    shl.b32 %r5, %r4, 2;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra done;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd5];
    max.f32 %f1, %f1, 0f00000000;
    max.f32 %f2, %f2, 0f00000000;
    max.f32 %f3, %f3, 0f00000000;
    max.f32 %f4, %f4, 0f00000000;
    sub.u32 %r6, %r1, %r5;
    setp.gt.u32 %p2, %r6, 1;
    setp.gt.u32 %p3, %r6, 2;
    setp.gt.u32 %p4, %r6, 3;
    st.global.f32 [%rd4], %f1;
    @%p2 st.global.f32 [%rd4+4], %f2;
    @%p3 st.global.f32 [%rd4+8], %f3;
    @%p4 st.global.f32 [%rd4+12], %f4;
done:
    ret;
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        relu[(x.numel() + 511) // 512](y, x, x.numel())
        return y
