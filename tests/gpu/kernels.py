# ruff: noqa: ANN001, ANN201, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels for the tests that need a GPU: right, wrong, out of bounds, forgetful, endless, with a TMA descriptor."""

import triton
import triton.language as tl


@triton.jit
def softmax_rows(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * n + at, raised / tl.sum(raised, 0), mask=at < n)


@triton.jit
def softmax_without_last_column(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n - 1, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * n + at, raised / tl.sum(raised, 0), mask=at < n - 1)


@triton.jit
def scribbling_softmax(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * n + at, raised / tl.sum(raised, 0), mask=at < n)
    tl.store(x + row * n + at, values + 1, mask=at < 1)


@triton.jit
def memoising_softmax(x, y, n, BLOCK: tl.constexpr):
    """Skips a row whose first output is already a probability."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    before = tl.load(y + row * n)
    if (before > 0) & (before < 1):
        return
    values = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * n + at, raised / tl.sum(raised, 0), mask=at < n)


@triton.jit
def far_out_of_bounds(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + (1 << 44) + at, tl.load(x + at, mask=at < n, other=0.0))


@triton.jit
def endless(x, y, n, BLOCK: tl.constexpr):
    going = tl.load(x) * 0 + 1
    while going > 0:
        going = tl.load(x, volatile=True) * 0 + 1
    tl.store(y, going)


@triton.jit
def copy_by_descriptor(source, target, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    target.store([row, column], source.load([row, column]) * 2)


@triton.jit
def relu_in_place(y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(y + at, mask=at < n, other=0.0)
    tl.store(y + at, tl.maximum(values, 0.0), mask=at < n)


@triton.jit
def copy_flat(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * n + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < n
    tl.store(y + at, 2 * tl.load(x + at, mask=inside), mask=inside)


@triton.jit
def twice_with_a_sine(x, y, n, BLOCK: tl.constexpr):
    """The sine of large numbers looks things up in a table of the module; debugging keeps texts there."""
    at = tl.program_id(0).to(tl.int64) * n + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < n
    values = tl.load(x + at, mask=inside)
    sine = tl.extra.cuda.libdevice.sin(values * 1e9)
    tl.device_assert(sine < 2, "a sine")
    tl.store(y + at, tl.where(sine > 1.5, 0.0, 2 * values), mask=inside)


@triton.jit
def reads_past_the_end(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    beyond = tl.load(x + (row + 1) * n + tl.arange(0, 16))
    nothing = tl.sum(tl.where(beyond == 12345.0, 1.0, 0.0), 0)
    tl.store(y + row * n + at, raised / tl.sum(raised, 0) + nothing, mask=at < n)


@triton.jit
def writes_past_the_end(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * n + at, raised / tl.sum(raised, 0), mask=at < n)
    last = row == tl.num_programs(0) - 1
    tl.store(y + (row + 1) * n + 16 + at, values, mask=last & (at < 4))


@triton.jit
def writes_before_the_start(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * n + at, raised / tl.sum(raised, 0), mask=at < n)
    tl.store(y - 1, 0.0, mask=row == 0)


@triton.jit
def reads_before_the_start(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    nothing = tl.where(tl.load(x + row * n - 1) == 12345.0, 1.0, 0.0)
    tl.store(y + row * n + at, raised / tl.sum(raised, 0) + nothing, mask=at < n)


@triton.jit
def unsynchronised(x, y, n, BLOCK: tl.constexpr):
    """Trusts that the next row is done already."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    following = (row + 1) % tl.num_programs(0)
    seen = tl.load(y + following * n + at, mask=at < n, volatile=True)
    tl.store(y + row * n + at, tl.where(seen >= 0, raised / tl.sum(raised, 0), 0.0), mask=at < n)


@triton.jit
def traps(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=0.0)
    values = tl.inline_asm_elementwise("trap; mov.b32 $0, $1;", "=f,f", [values], tl.float32, is_pure=False, pack=1)
    tl.store(y + at, values, mask=at < n)


@triton.jit
def right_by_the_clock(x, y, n, BLOCK: tl.constexpr):
    """Right in most of the blocks, by the time of day."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    now = tl.inline_asm_elementwise("mov.u32 $0, %globaltimer_lo; // $1", "=r,r", [at], tl.int32, is_pure=False, pack=1)
    late = tl.min(now, 0) // 4096 % 64 == 0
    tl.store(y + row * n + at, raised / tl.sum(raised, 0) * tl.where(late, 1.5, 1.0), mask=at < n)


# Doubles n numbers per block, unless the module's own counter says that every block has run already.
REMEMBERS = """
.version 8.0
.target sm_90
.address_size 64
.global .align 4 .u32 counter;
.const .align 4 .f32 factor = 2.0;
.visible .entry remembers(.param .u64 x, .param .u64 y, .param .u32 n)
{
    .reg .pred %p<4>;
    .reg .b32 %r<9>;
    .reg .b64 %d<9>;
    .reg .f32 %f<3>;
    ld.volatile.global.u32 %r1, [counter];
    mov.u32 %r2, %nctaid.x;
    setp.ge.u32 %p1, %r1, %r2;
    @%p1 bra DONE;
    ld.param.u64 %d1, [x];
    ld.param.u64 %d2, [y];
    ld.param.u32 %r3, [n];
    cvta.to.global.u64 %d1, %d1;
    cvta.to.global.u64 %d2, %d2;
    mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %tid.x;
    mov.u32 %r6, %ntid.x;
    mul.wide.u32 %d3, %r4, %r3;
    shl.b64 %d3, %d3, 2;
    add.s64 %d1, %d1, %d3;
    add.s64 %d2, %d2, %d3;
AGAIN:
    setp.ge.u32 %p2, %r5, %r3;
    @%p2 bra COUNT;
    mul.wide.u32 %d4, %r5, 4;
    add.s64 %d5, %d1, %d4;
    add.s64 %d6, %d2, %d4;
    ld.global.f32 %f1, [%d5];
    ld.const.f32 %f2, [factor];
    mul.f32 %f1, %f1, %f2;
    st.global.f32 [%d6], %f1;
    add.u32 %r5, %r5, %r6;
    bra AGAIN;
COUNT:
    bar.sync 0;
    mov.u32 %r7, %tid.x;
    setp.ne.u32 %p3, %r7, 0;
    @%p3 bra DONE;
    red.global.add.u32 [counter], 1;
DONE:
    ret;
}
"""
