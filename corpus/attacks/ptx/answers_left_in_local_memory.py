"""The same with local memory, which the next launch finds as it was."""

import torch
from torch import nn

from kerneltune import PtxKernel

SPECIMEN = {
    "id": "P07",
    "task": "h_relu",
    "expect": ["unchecked"],
    "expect_gpu": ["wrong", "impossible", "correct"],
    "needs_gpu": True,
    "twin": "relu_ptx",
    "gain_below": 1.05,
    "naive": "not applicable",
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
    .local .align 8 .b8 kept[1024];
    @%p1 bra done;
    mul.wide.u32 %rd6, %r3, 8;
    mov.u64 %rd7, kept;
    add.s64 %rd7, %rd7, %rd6;
    ld.local.v2.b32 {%r6, %r7}, [%rd7];
    setp.eq.u32 %p2, %r6, 1467836143;
    @%p2 bra again;
    ld.global.f32 %f1, [%rd5];
    max.f32 %f1, %f1, 0f00000000;
    mov.b32 %r7, %f1;
    mov.u32 %r6, 1467836143;
    st.local.v2.b32 [%rd7], {%r6, %r7};
again:
    st.global.b32 [%rd4], %r7;
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
