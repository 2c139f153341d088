"""Edits its own plan: an option for the assembler that writes to a file."""

import dataclasses

import torch
from torch import nn

from kerneltune import PtxKernel
from kerneltune.tools.trace import tracer as trace

SPECIMEN = {
    "id": "P50",
    "task": "h_relu",
    "expect": ["rejected"],
    "naive": "not applicable",
}


def forge(plan):
    return dataclasses.replace(
        plan,
        kernels=tuple(
            dataclasses.replace(k, options=k.options | {"ptx_options": "-o /tmp/mine"}) for k in plan.kernels
        ),
    )


real = trace.build_plan
trace.build_plan = lambda *args, **kwargs: forge(real(*args, **kwargs))

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
    ld.global.f32 %f1, [%rd5];
    max.f32 %f1, %f1, 0f00000000;
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
