import pytest

from kerneltune.tools.languages.ptx import parse
from kerneltune.tools.languages.ptx.checks import PtxFinding, findings, waits
from tests.tools.languages.ptx.conftest import LOAD, RELU, with_lines


def found(text: str, arch: str = "sm_90") -> list[PtxFinding]:
    module = parse(text)
    return findings(module, module.entries[0], arch)


def fatal(text: str, arch: str = "sm_90") -> list[tuple[int, str]]:
    return [(f.line, f.message) for f in found(text, arch) if f.fatal]


def declared(line: str, use: str = "kept") -> str:
    """A variable of the module in line 4, and an instruction with its address."""
    return with_lines(f"mov.u64 %rd6, {use};").replace(".visible", f"{line}\n.visible")


def test_nothing_is_wrong_with_a_plain_kernel() -> None:
    assert found(RELU) == []


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("sm_100a", "this run's GPU is sm_90; write .target sm_90a"),
        ("sm_120f", "this run's GPU is sm_90"),
        ("sm_80a", "the text is for sm_80a"),
        ("gfx942", "no GPU's"),
        ("sm_" + "9" * 9000, "no GPU's"),
    ],
)
def test_a_text_for_another_gpu_is_refused_with_the_target_to_write(target: str, words: str) -> None:
    ((line, message),) = fatal(RELU.replace("sm_90", target))
    assert line == 2
    assert words in message


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_90a"])
def test_older_and_equal_targets_are_fine(target: str) -> None:
    assert fatal(RELU.replace("sm_90", target)) == []


@pytest.mark.parametrize(
    ("line", "use"),
    [
        (".global .align 4 .f32 kept[64];", "kept"),
        (".visible .global .f32 kept;", "0"),
        (".global .f32 kept[2] = {1.0, 2.0};", "kept; st.f32 [%rd6], %f1"),
        (".global .f32 kept[2] = {1.0, 2.0};", "kept; cvta.global.u64 %rd6, %rd6; red.add.f32 [%rd6+4], 1.0"),
        (".const .f32 kept[2] = {1.0, 2.0};", "kept; cvta.const.u64 %rd6, %rd6; st.f32 [%rd6], 1.0"),
        (".const .f32 kept[2];", "0"),
        (".extern .global .f32 kept[];", "0"),
        (".extern .const .f32 kept[2];", "0"),
        (".global .b8 kept[33554432] = {1};", "0"),
    ],
)
def test_memory_that_outlives_a_launch_is_refused_where_it_is_declared(line: str, use: str) -> None:
    (first, *_) = fatal(declared(line, use))
    assert first[0] == 4


def test_memory_that_a_body_declares_is_no_exception() -> None:
    ((line, message),) = fatal(with_lines("{ .global .b32 kept; st.global.u32 [kept], %r1; }"))
    assert line == 22
    assert message.startswith(".global kept is memory that outlives")


@pytest.mark.parametrize(
    "line",
    [
        ".global .f32 kept[2] = {1.0, 2.0};",
        ".const .f32 kept[2] = {1.0, 2.0};",
        ".shared .align 4 .b8 kept[64];",
        ".extern .shared .b8 kept[];",
    ],
)
def test_tables_that_are_only_read_and_shared_memory_are_fine(line: str) -> None:
    assert fatal(declared(line, "kept; ld.u32 %r5, [%rd6]")) == []


FAILS = ".extern .func __assertfail(.param .b64 a);"
TWICE = """.func (.param .b32 r) twice(.param .b64 at) { .reg .b64 %a; .reg .f32 %v; ld.param.u64 %a, [at];
    ld.f32 %v, [%a]; st.f32 [%a], %v; st.param.f32 [r], %v; ret; }"""
GIVE = "{{ .param .b64 p; .param .b32 q; mov.u64 %rd6, kept; st.param.b64 [p], {}; {} }}"
ASSERT, CALL = "call.uni __assertfail, (p);", "call.uni (q), twice, (p);"


def called(functions: str, line: str) -> list[tuple[int, str]]:
    """What is wrong with a call in a kernel beside a table."""
    return fatal(declared(f".global .f32 kept[2] = {{1.0, 2.0}};\n{functions}", f"kept; {line}"))


@pytest.mark.parametrize(
    ("functions", "line"), [(FAILS, GIVE.format("%rd6", ASSERT)), (TWICE, GIVE.format("%rd2", CALL))]
)
def test_a_call_that_is_not_given_a_table_changes_none_nor_does_an_assertion(functions: str, line: str) -> None:
    assert called(functions, line) == []


@pytest.mark.parametrize(
    ("functions", "line"),
    [
        (TWICE, GIVE.format("%rd6", CALL)),
        (TWICE, "{ .param .b32 q; mov.u64 %rd6, kept; call.uni (q), twice, (%rd6); }"),
        (FAILS + TWICE, GIVE.format("%rd6", ASSERT + CALL)),
        (TWICE.replace("twice", "__assertfail"), GIVE.format("%rd6", "call.uni (q), __assertfail, (p);")),
        (".func sets() { st.global.f32 [kept], 0f00000000; ret; }", "call.uni sets, ();"),
        (TWICE, GIVE.format("%rd6", "call (q), %rd6, (p), twice;")),
    ],
)
def test_a_table_that_a_function_may_write_outlives_a_launch(functions: str, line: str) -> None:
    assert any(".global kept is memory that outlives" in message for _, message in called(functions, line))


@pytest.mark.parametrize("name", ["vprintf", "malloc", "free", "cudaLaunchDevice"])
def test_a_function_from_elsewhere_is_refused(name: str) -> None:
    ((line, message),) = fatal(RELU.replace(".visible", f".extern .func {name}(.param .b64 a);\n.visible"))
    assert (line, name in message) == (4, True)


def test_the_driver_s_assertion_is_allowed() -> None:
    assert fatal(RELU.replace(".visible", ".extern .func __assertfail(.param .b64 a);\n.visible")) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("brkpt;", "debugger"),
        ("@%p1 pmevent 1;", "profiler"),
        ("prefetch.global.L2 [%rd5];", "L2"),
        ("prefetchu.L1 [%rd5];", "L2"),
        ("discard.global.L2 [%rd5], 128;", "L2"),
        ("applypriority.global.L2::evict_normal [%rd5], 128;", "L2"),
        ("cp.async.bulk.prefetch.L2.global [%rd5], 128;", "L2"),
        ("tex.1d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [t, {%r1}];", "ld and st"),
        ("multimem.red.global.add.f32 [%rd5], %f1;", "several GPUs"),
        ("maxx.f32 %f1, %f1, %f2;", "is 'max' meant?"),
    ],
)
def test_an_instruction_that_may_not_run_is_named_with_its_line(line: str, words: str) -> None:
    ((at, message),) = fatal(with_lines(line))
    assert at == 22
    assert words in message


def test_a_prefetch_of_a_descriptor_is_allowed() -> None:
    assert fatal(with_lines("prefetch.param.tensormap [y];", "prefetch.tensormap [%rd5];")) == []


def test_notes_do_not_stop_a_kernel() -> None:
    text = with_lines("bra over;", "trap;", "over:").replace(".param .u32 n)", ".param .u32 n, .param .u32 unused)")
    notes = found(text)
    assert [(f.line, f.fatal) for f in notes] == [(4, False), (23, False)]
    assert "unused is never read" in notes[0].message
    assert "trap" in notes[1].message


@pytest.mark.parametrize(
    "lines",
    [
        ("again: add.u32 %r5, %r5, 1;", "bra again;"),
        ("again: setp.eq.u32 %p2, %r5, 1;", "@%p2 bra again;", "bra again;"),
        ("{ again: bra again; }",),
    ],
)
def test_a_loop_without_a_way_out_is_refused(lines: tuple[str, ...]) -> None:
    ((line, message),) = fatal(with_lines(*lines))
    assert line == 21 + len(lines)
    assert "no way out" in message


@pytest.mark.parametrize(
    "lines",
    [
        ("again: setp.eq.u32 %p2, %r5, 1;", "@%p2 bra done;", "bra again;"),
        ("again: @%p2 exit;", "bra again;"),
        ("bra check;", "again: add.u32 %r5, %r5, 1;", "check: @%p2 bra again;"),
        ("{ bra wait; over: ret; wait: @%p2 bra over; bra wait; }",) * 2,
    ],
)
def test_a_loop_with_a_way_out_is_not(lines: tuple[str, ...]) -> None:
    assert fatal(with_lines(*lines)) == []


def test_a_loop_that_waits_for_others_is_a_note() -> None:
    spin = ("again: ld.acquire.gpu.global.u32 %r5, [%rd5];", "setp.eq.u32 %p2, %r5, 0;", "@%p2 bra again;")
    assert [f.line for f in found(with_lines(*spin))] == [24]
    assert found(with_lines(*[line.replace("global", "shared") for line in spin])) == []


def test_ten_thousand_loops_within_each_other_are_looked_at_in_seconds() -> None:
    labels = [f"l{i}:" for i in range(10_000)]
    assert isinstance(fatal(with_lines(*labels, *(f"@%p2 bra l{i};" for i in range(10_000)))), list)


@pytest.mark.parametrize(
    "lines",
    [
        ("ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1+4];",),
        ("st.global.v2.f32 [%rd2+12], {%f1,%f2};",),
        ("add.s64 %rd6, %rd1, 8;", "ld.global.v4.u32 {%r5,%r6,%r7,%r8}, [%rd6];"),
        ("cvta.to.global.u64 %rd1, %rd1;", "ld.global.u64 %rd6, [%rd1+20];"),
        (".shared .align 16 .b8 tile[64];", "ld.shared.v4.f32 {%f1,%f2,%f3,%f4}, [tile+8];"),
    ],
)
def test_a_vector_that_cannot_be_aligned_is_refused(lines: tuple[str, ...]) -> None:
    ((line, message),) = fatal(with_lines(*lines))
    assert line == 21 + len(lines)
    assert "alignment" in message


@pytest.mark.parametrize(
    "lines",
    [
        ("ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1+16];",),
        ("ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%rd5+4];",),
        ("@%p1 add.s64 %rd1, %rd1, 12;", "ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1+4];"),
        ("again: ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1+4];", "add.s64 %rd1, %rd1, 4;", "@%p1 bra again;"),
        (".shared .align 4 .b8 tile[64];", "ld.shared.v4.f32 {%f1,%f2,%f3,%f4}, [tile+12];"),
        (".shared .align 16 .b64 bar;", "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
         "[%r5], {%r1,%r2,%r3,%r4}, [bar+8];"),
    ],
)  # fmt: skip
def test_a_vector_that_may_be_aligned_is_not(lines: tuple[str, ...]) -> None:
    assert fatal(with_lines(*lines)) == []


def test_a_pointer_that_is_said_to_be_less_aligned_is_believed() -> None:
    text = with_lines("ld.global.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1+4];")
    assert fatal(text.replace(".param .u64 y", ".param .u64 .ptr .global .align 4 y")) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [("griddepcontrol.wait;", True), ("// griddepcontrol.wait", False), ("@%p1 griddepcontrol.wait;", False)],
)
def test_only_an_instruction_waits_for_the_launch_before(line: str, expected: bool) -> None:
    assert waits(parse(with_lines(line)).entries[0]) is expected


def test_the_load_of_these_texts_is_in_line_22() -> None:
    assert RELU.split("\n")[21] + "\n" == LOAD
