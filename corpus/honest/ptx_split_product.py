"""A check for half-precision products in a float32 task refuses this: each matrix is split into two float16, its rows
and columns scaled by powers of two, so that 22 bits count; three products of halves make one of float32."""

import torch
import triton
import triton.language as tl
from torch import nn
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kerneltune import PtxKernel

SPECIMEN = {
    "id": "F-ptx-16",
    "task": "matmul",
    "expect": ["checked"],
}

# 128 x 128 a tile: 64 rows for each of two warp groups. A line of a box has 128 bytes, which is what the swizzle has.
BM, BN, BK, STAGES = 128, 128, 64, 3
BOX_BYTES = BM * BK * 2  # of one half of a or b
SLOT_BYTES = 4 * BOX_BYTES  # a's upper halves and lower ones, b's upper ones and lower ones
SHARED_BYTES = STAGES * SLOT_BYTES + 16 * STAGES
LOADER = 256  # the thread that loads; those before it compute
CONSTANTS = {
    "BM": BM, "BN": BN, "BK": BK, "STAGES": STAGES, "BOX_BYTES": BOX_BYTES, "SLOT_BYTES": SLOT_BYTES, "LOADER": LOADER
}  # fmt: skip

PRODUCT = r"""
//: set WIDE = (N + BN - 1) // BN
//: set HIGH = (M + BM - 1) // BM
//: set EMPTY = 8 * STAGES
//: macro place()
    // tiles in groups of eight rows: blocks that run together share more of a and b in the L2
    div.u32            %group, %tile, ${8 * WIDE};
    rem.u32            %inner, %tile, ${8 * WIDE};
    shl.b32            %group, %group, 3;
    sub.u32            %height, ${HIGH}, %group;
    min.u32            %height, %height, 8;
    rem.u32            %row, %inner, %height;
    add.u32            %row, %row, %group;
    mul.lo.u32         %row, %row, ${BM};
    div.u32            %column, %inner, %height;
    mul.lo.u32         %column, %column, ${BN};
//: endmacro
//: macro slot_of_this_step()
    mad.lo.u32         %at, %slot, ${SLOT_BYTES}, %ring;
    mad.lo.u32         %full, %slot, 8, %barriers;
//: endmacro
//: macro advance(again)
    add.u32            %slot, %slot, 1;
    setp.eq.u32        %p, %slot, ${STAGES};
    @%p mov.u32        %slot, 0;
    @%p xor.b32        %parity, %parity, 1;
    add.u32            %k, %k, ${BK};
    setp.lt.u32        %p, %k, ${PITCH};
    @%p bra            ${again};
//: endmacro
//: macro wait(label, barrier, parity)
${label}:
    mbarrier.try_wait.parity.shared::cta.b64 %p, [${barrier}], ${parity};
    @!%p bra           ${label};
//: endmacro
//: macro next_tile(label)
    mov.u32            %i, %nctaid.x;
    add.u32            %tile, %tile, %i;
    setp.lt.u32        %p, %tile, ${HIGH * WIDE};
    @%p bra            ${label};
    ret;
//: endmacro
.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 ring[];

.visible .entry split_product(
//: for name in ("a", "b")
    .param .align 64 .b8 ${name}[128], .param .u32 ${name}_rows, .param .u32 ${name}_cols,
    .param .u64 ${name}_pitch, .param .u64 ${name}_step,
//: endfor
    .param .u64 c, .param .u64 of_rows, .param .u64 of_columns
)
.reqntid ${LOADER + 32}
{
    .reg .pred         %p, %more, %none, %leads, %inside, %row_inside, %right_inside;
    .reg .b32          %thread, %ring, %barriers, %slot, %parity, %at, %full, %i, %j, %k, %low, %bytes;
    .reg .b32          %tile, %group, %inner, %height, %row, %column;
    .reg .b64          %a, %b, %of_a, %of_b, %rows_of_a, %da, %db, %c, %to, %factors, %from;
    .reg .f32          %sum<64>, %part<64>, %r, %s, %left, %right;

    mov.u32            %thread, %tid.x;
    mov.u32            %ring, ring;
    add.u32            %barriers, %ring, ${STAGES * SLOT_BYTES};    // STAGES that say full, then STAGES that say empty
    setp.ne.u32        %p, %thread, 0;
    @%p bra            begin;
//: for s in range(STAGES)
    mbarrier.init.shared::cta.b64 [%barriers+${8 * s}], 1;
    mbarrier.init.shared::cta.b64 [%barriers+${EMPTY + 8 * s}], 8;         // warps that compute
//: endfor
    fence.proxy.async.shared::cta;
begin:
    bar.sync           0;
    mov.u32            %tile, %ctaid.x;
    mov.u32            %slot, 0;
    mov.u32            %parity, 0;
    setp.lt.u32        %p, %thread, ${LOADER};
    @%p bra            compute;

    // one thread loads
    setp.ne.u32        %p, %thread, ${LOADER};
    @%p ret;
//: for name in ("a", "b")
    mov.b64            %${name}, ${name};
    cvta.param.u64     %${name}, %${name};
//: endfor
    mov.u32            %bytes, ${SLOT_BYTES};
load_tile:
${place()}    mov.u32            %k, 0;
load:
${slot_of_this_step()}    xor.b32            %i, %parity, 1;
${wait("is_empty", "%full+" ~ EMPTY, "%i")}    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%full], %bytes;
    add.u32            %low, %k, ${PITCH};              // the lower halves stand behind the upper ones
//: for name, corner in (("a", "{%k, %row}"), ("a", "{%low, %row}"), ("b", "{%k, %column}"), ("b", "{%low, %column}"))
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
        [%at+${loop.index0 * BOX_BYTES}], [%${name}, ${corner}], [%full];
//: endfor
${advance("load")}${next_tile("load_tile")}
compute:
    and.b32            %i, %thread, 31;
    setp.eq.u32        %leads, %i, 0;
    setp.ne.u32        %none, %i, %i;
    setp.eq.u32        %more, %i, %i;
    shr.u32            %i, %thread, 7;
    mul.wide.u32       %rows_of_a, %i, ${64 * BK * 2 // 16};    // the group's rows, in units of 16 bytes
    ld.param.u64       %c, [c];
    cvta.to.global.u64 %c, %c;
compute_tile:
${place()}    mov.u32            %k, 0;
//: for n in range(64)
    mov.f32            %sum${n}, 0f00000000;
//: endfor
multiply:
${slot_of_this_step()}${wait("is_full", "%full", "%parity")}
    // matrices in shared memory: 128 bytes a line, swizzled (2**62), eight lines 1024 bytes after eight others
    shr.u32            %i, %at, 4;
    cvt.u64.u32        %of_b, %i;
    add.u64            %of_b, %of_b, ${2**62 + 1024 // 16 * 2**32 + 2**16};
    add.u64            %of_a, %of_b, %rows_of_a;
    wgmma.fence.sync.aligned;
    // low * high, high * low, high * high: small ones first
//: for of_a, of_b in ((1, 2), (0, 3), (0, 2))
//: set first = loop.first
//: for k in range(BK // 16)
    add.u64            %da, %of_a, ${(of_a * BOX_BYTES + 32 * k) // 16};
    add.u64            %db, %of_b, ${(of_b * BOX_BYTES + 32 * k) // 16};
    wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16
        {<% for n in range(64) %>%part${n}${", " if not loop.last}<% endfor %>},
        %da, %db, ${"%none" if first and loop.first else "%more"}, 1, 1, 0, 0;
//: endfor
//: endfor
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    @%leads mbarrier.arrive.shared::cta.b64 _, [%full+${EMPTY}];
    // tensor cores add in fewer bits than float32 has: what they added of one step goes to sums of its own
//: for n in range(64)
    add.f32            %sum${n}, %sum${n}, %part${n};
//: endfor
${advance("multiply")}
    // a thread has two neighbours of every eighth column of rows lane / 4 and lane / 4 + 8 of its warp's sixteen
    shr.u32            %i, %thread, 5;
    mad.lo.u32         %row, %i, 16, %row;
    and.b32            %i, %thread, 31;
    shr.u32            %j, %i, 2;
    add.u32            %row, %row, %j;
    and.b32            %j, %i, 3;
    mad.lo.u32         %column, %j, 2, %column;
//: for half in (0, 1)
    setp.lt.u32        %row_inside, %row, ${M};
    mov.f32            %r, 0f00000000;
    ld.param.u64       %factors, [of_rows];
    cvta.to.global.u64 %factors, %factors;
    mad.wide.u32       %factors, %row, 4, %factors;
    @%row_inside ld.global.f32 %r, [%factors];
    ld.param.u64       %factors, [of_columns];
    cvta.to.global.u64 %factors, %factors;
    mad.wide.u32       %factors, %column, 4, %factors;
    mul.wide.u32       %to, %row, ${N};
    cvt.u64.u32        %from, %column;
    add.u64            %to, %to, %from;
    shl.b64            %to, %to, 2;
    add.u64            %to, %c, %to;
//: for n in range(BN // 8)
    add.u32            %j, %column, ${8 * n};
    setp.lt.and.u32    %inside, %j, ${N}, %row_inside;
    setp.lt.and.u32    %right_inside, %j, ${N - 1}, %row_inside;
    mov.f32            %left, 0f00000000;
    mov.f32            %right, 0f00000000;
    @%inside ld.global.f32 %left, [%factors+${32 * n}];
    @%right_inside ld.global.f32 %right, [%factors+${32 * n + 4}];
    mul.f32            %s, %sum${4 * n + 2 * half}, %r;
    mul.f32            %left, %s, %left;
    mul.f32            %s, %sum${4 * n + 2 * half + 1}, %r;
    mul.f32            %right, %s, %right;
//: if N % 2 == 0
    @%inside st.global.v2.f32 [%to+${32 * n}], {%left, %right};
//: else
    @%inside st.global.f32 [%to+${32 * n}], %left;
    @%right_inside st.global.f32 [%to+${32 * n + 4}], %right;
//: endif
//: endfor
    add.u32            %row, %row, 8;
//: endfor
${next_tile("compute_tile")}}
"""


@triton.jit
def tile_of(x, lines, length, line_step, step, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """This program's block of lines (rows of a, columns of b), their numbers and the places in a line."""
    line = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    at = line.to(tl.int64)[:, None] * line_step + i.to(tl.int64)[None, :] * step
    return tl.load(x + at, mask=(line < lines)[:, None] & (i < length)[None, :], other=0.0), line, i


@triton.jit
def largest_kernel(x, most, lines, length, line_step, step, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """The bits of the largest finite magnitude of each line: they are in the order of the numbers."""
    v, line, _ = tile_of(x, lines, length, line_step, step, BLOCK, WIDTH)
    bits = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    bits = tl.where(bits < 0x7F800000, bits, 0)
    tl.atomic_max(most + line, tl.max(bits, axis=1), mask=line < lines)


@triton.jit
def split_kernel(
    x, most, halves, back, lines, length, pitch, line_step, step, BLOCK: tl.constexpr, WIDTH: tl.constexpr
):
    """Lines as rows of 2 * pitch halves, the upper ones first; zeros fill up. `back` undoes a line's scale."""
    v, line, i = tile_of(x, lines, length, line_step, step, BLOCK, WIDTH)
    exponent = tl.load(most + line, mask=line < lines, other=0) >> 23
    exponent = tl.minimum(tl.maximum(exponent, 15), 253)  # the largest of a line becomes 2**14 and more
    v = v * ((268 - exponent) << 23).to(tl.float32, bitcast=True)[:, None]
    if tl.program_id(1) == 0:
        tl.store(back + line, ((exponent - 14) << 23).to(tl.float32, bitcast=True), mask=line < lines)
    high = v.to(tl.float16)
    low = (v - high.to(tl.float32)).to(tl.float16)
    at = line.to(tl.int64)[:, None] * (2 * pitch) + i[None, :]
    inside = (line < lines)[:, None] & (i < pitch)[None, :]
    tl.store(halves + at, high, mask=inside)
    tl.store(halves + at + pitch, low, mask=inside)


def split(x):
    """The halves of x's rows, [rows, 2 * pitch], and the factors that undo the rows' scales."""
    lines, length = x.shape
    pitch = triton.cdiv(length, BK) * BK
    halves = torch.empty(lines, 2 * pitch, dtype=torch.float16, device=x.device)
    back = torch.empty(lines, dtype=torch.float32, device=x.device)
    most = torch.zeros(lines, dtype=torch.int32, device=x.device)
    block, width = (16, 256) if x.stride(1) == 1 else (64, 64)  # b.t(): neighbours in memory are of different lines
    grid = (triton.cdiv(lines, block), triton.cdiv(pitch, width))
    given = (lines, length, x.stride(0), x.stride(1))
    largest_kernel[grid](x, most, *given, block, width, num_warps=8)
    split_kernel[grid](x, most, halves, back, *given[:2], pitch, *given[2:], block, width, num_warps=8)
    return halves, back


def described(x):
    block = [BM, BK]
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, gl.float16))


class ModelNew(nn.Module):
    def forward(self, a, b):
        m, n = a.shape[0], b.shape[1]
        (a_halves, of_rows), (b_halves, of_columns) = split(a), split(b.t())
        c = torch.empty(m, n, dtype=a.dtype, device=a.device)
        product = PtxKernel(PRODUCT, configs=[CONSTANTS | {"M": m, "N": n, "PITCH": a_halves.shape[1] // 2}])
        tiles = triton.cdiv(m, BM) * triton.cdiv(n, BN)
        programs = min(tiles, torch.cuda.get_device_properties(a.device).multi_processor_count)
        product[programs](described(a_halves), described(b_halves), c, of_rows, of_columns, shared_bytes=SHARED_BYTES)
        return c
