"""PTX to test with: a rectifier whose parts can be replaced, and the candidate around it."""

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
ENTRY = ".visible .entry relu(.param .u64 y, .param .u64 x, .param .u32 n)\n.reqntid 128\n"
BODY = """{
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
    @%p1 bra done;
    mul.wide.u32 %rd3, %r4, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f1, [%rd5];
    max.f32 %f1, %f1, 0f00000000;
    st.global.f32 [%rd4], %f1;
done:
    ret;
}
"""
RELU = HEAD + ENTRY + BODY
LOAD, STORE = "    ld.global.f32 %f1, [%rd5];\n", "    st.global.f32 [%rd4], %f1;\n"


def with_lines(*lines: str, text: str = RELU) -> str:
    """The rectifier with more lines in front of its load, which is in line 22."""
    assert LOAD in text
    return text.replace(LOAD, "".join(f"    {line}\n" for line in lines) + LOAD)


def candidate(text: str = RELU, *, grid: str = "(x.numel() + 127) // 128", call: str = "y, x, x.numel()") -> str:
    """A file with that PTX in lines 6 and on."""
    return f'''import torch
from torch import nn
from kerneltune import PtxKernel

relu = PtxKernel(r"""
{text}""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        relu[{grid}]({call})
        return y
'''
