"""What is known of registers: by hand-made kernels whose numbers are easy to follow."""

import pytest

from tools.ptx import parse
from tools.ptx.rewrites.flow import Flow
from tools.ptx.rewrites.launched import Launched
from tools.ptx.rewrites.span import Span
from tools.ptx.rewrites.spans import Spans

HEAD = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p, .param .u32 n) .reqntid 128
{
    .reg .b32 %r<30>;
    .reg .b64 %d<20>;
    .reg .pred %q<10>;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    ld.param.u32 %r2, [n];
    ld.param.u64 %d0, [p];
"""


def spans(body: str, **launched: object) -> Spans:
    entry = parse(HEAD + body + "\n    ret;\n}\n").entries[0]
    known = Launched(grid=(10, 1, 1), scalars={1: (1280, 1280)}, aligned={0: 16}, **launched)  # type: ignore[arg-type]
    return Spans(entry, Flow(entry), known)


@pytest.mark.parametrize(
    ("statement", "span"),
    [
        ("mad.lo.s32 %r9, %r1, 128, %r0;", Span(0, 1279)),
        ("shl.b32 %r9, %r0, 2;", Span(0, 508, 4)),
        ("and.b32 %r9, %r0, 31;", Span(0, 31)),
        ("and.b32 %r9, %r0, 127;", Span(0, 127)),
        ("shr.u32 %r9, %r0, 5;", Span(0, 3)),
        ("sub.s32 %r9, %r0, 1;", Span(-1, 126)),
        ("xor.b32 %r9, %r0, 256;", Span(256, 383)),
        ("mov.b32 %r9, %r2;", Span(1280, 1280, 0)),
        ("min.s32 %r9, %r0, 5;", Span(0, 5)),
    ],
)
def test_a_register_s_numbers_follow_from_threads_blocks_and_arguments(statement: str, span: Span) -> None:
    assert spans(statement).of("%r9") == span


@pytest.mark.parametrize(
    ("body", "truth"),
    [
        ("mad.lo.s32 %r9, %r1, 128, %r0;\n setp.lt.s32 %q1, %r9, %r2;", True),
        ("mad.lo.s32 %r9, %r1, 128, %r0;\n setp.lt.s32 %q1, %r9, 1279;", None),
        ("setp.ge.s32 %q1, %r0, 128;", False),
        ("setp.lt.u32 %q1, %r0, %r2;", True),
        ("sub.s32 %r9, %r0, 1;\n setp.lt.u32 %q1, %r9, 128;", None),  # thread 0 has 2^32 - 1
        ("sub.s32 %r9, %r0, 1;\n setp.lt.s32 %q1, %r9, 128;", True),
        ("shl.b32 %r9, %r0, 26;\n setp.lt.s32 %q1, %r9, 2000000000;", None),  # it turns over
        ("setp.lt.s32 %q2, %r0, 128;\n not.pred %q1, %q2;", False),
        ("setp.lt.s32 %q2, %r0, 128;\n setp.lt.s32 %q3, %r0, 5;\n or.pred %q1, %q2, %q3;", True),
        ("setp.lt.s32 %q2, %r0, 128;\n setp.lt.s32 %q3, %r0, 5;\n and.pred %q1, %q2, %q3;", None),
        ("mov.u32 %r9, 5;\n @%q5 mov.u32 %r9, 200;\n setp.lt.s32 %q1, %r9, 10;", None),  # two writers
    ],
)
def test_a_comparison_is_decided_only_where_every_thread_of_every_launch_agrees(body: str, truth: bool | None) -> None:
    assert spans(body).truth("%q1") is truth


LOOP = """
    mov.u32 %r5, {first};
    bra.uni $head;
$head:
    add.s32 %r6, %r5, %r0;
    setp.lt.s32 %q1, %r6, %r2;
    add.s32 %r7, %r5, 128;
    setp.lt.s32 %q2, %r7, %r2;
    mov.u32 %r5, %r7;
    @%q2 bra $head;
{after}
"""


def test_a_loop_s_counter_stays_below_its_end_inside_of_the_loop() -> None:
    assert spans(LOOP.format(first=0, after="")).truth("%q1") is True


@pytest.mark.parametrize(
    ("first", "after"),
    [(1, ""), (0, "    add.s32 %r8, %r5, 1;")],
    ids=["it begins off the grid of its steps", "it is read behind the loop"],
)
def test_a_counter_that_may_be_beyond_the_end_decides_nothing(first: int, after: str) -> None:
    assert spans(LOOP.format(first=first, after=after)).truth("%q1") is None


def test_an_address_is_as_aligned_as_its_pointer_and_its_steps() -> None:
    known = spans("shl.b32 %r9, %r0, 2;\n mul.wide.s32 %d1, %r9, 4;\n add.s64 %d2, %d0, %d1;\n add.s64 %d3, %d2, 8;")
    assert (known.aligned(known.of("%d2")), known.aligned(known.of("%d3"))) == (16, 8)
    assert known.param_of(known.of("%d3")) == 0
