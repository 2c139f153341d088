"""Loops, counts and differences of listings that are written down here: odd ones, and hostile ones."""

import time

import pytest

from tools.plan.sass_census import class_of, counted
from tools.plan.sass_diff import deltas, difference, in_sets, normalised, ptx_difference
from tools.plan.sass_flow import cycles
from tools.plan.sass_ir import MOST_INSTRUCTIONS, Control, Instruction, Loop, Part, Sass, made_plain
from tools.plan.sass_parse import instructions


def code(text: str) -> tuple[Instruction, ...]:
    """Of "label:" lines and instructions."""
    lines, address = [], 0
    for line in text.strip().splitlines():
        stripped = line.strip()
        if stripped.endswith(":"):
            lines.append(stripped)
        else:
            lines.append(f"        /*{address:04x}*/                   {stripped} ;")
            address += 16
    return instructions(lines)[0]


def sass(text: str, name: str = "k") -> Sass:
    return counted(name, code(text))


def loops(text: str) -> list[tuple[int, int, int]]:
    """First and last instruction and depth of each."""
    return [(c.members[0], c.members[-1], c.depth) for c in cycles(code(text))]


NESTED = """
    MOV R1, RZ
.L_x_0:
    MOV R2, RZ
.L_x_1:
    FFMA R3, R3, R3, R3
@P0 BRA `(.L_x_1)
    STG.E [R4.64], R3
@P1 BRA `(.L_x_0)
    EXIT
.L_x_2:
    BRA `(.L_x_2)
"""


def test_the_innermost_loop_counts_first() -> None:
    assert loops(NESTED) == [(1, 5, 1), (2, 3, 2)]
    kernel = sass(NESTED)
    assert kernel.hot is not None
    assert kernel.hot.members == (2, 3)
    assert kernel.hot.part.classes == {"float": 1, "branch": 1}


WAITING = """
.L_x_0:
    SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2
@!P0 BRA `(.L_x_2)
.L_x_1:
    HGMMA.64x128x16.F32 R24, gdesc[UR4], R24
@P1 BRA `(.L_x_0)
    EXIT
.L_x_2:
    SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2
@!P0 BRA `(.L_x_2)
    BRA `(.L_x_1)
"""


def test_a_wait_that_stands_behind_the_end_is_part_of_its_loop_and_not_the_hot_one() -> None:
    kernel = sass(WAITING)
    assert kernel.hot is not None
    assert kernel.hot.members == (0, 1, 2, 3, 5, 6, 7)  # all but EXIT: the branch back from behind the end is no loop
    assert [(loop.members, loop.waits) for loop in kernel.loops] == [
        (kernel.hot.members, False),
        ((5, 6), True),
    ]


def test_a_branch_whose_condition_stands_among_the_operands_falls_through() -> None:
    assert loops(".L_x_0:\n IADD3 R1, R1, R2, RZ\n BRA.U UP0, `(.L_x_0)\n EXIT") == [(0, 1, 1)]
    assert loops(".L_x_0:\n FADD R1, R1, R2\n BRA.U UP0, `(.L_x_9)\n BRA `(.L_x_0)\n.L_x_9:\n EXIT") == [(0, 2, 1)]


def test_indirect_branches_calls_and_unknown_labels_are_survived() -> None:
    text = """
        BRX R2 -0x40
    .L_x_1:
        FADD R1, R1, R2
    @P0 BRA `(.L_x_1)
        BRA `(.L_nowhere)
    .text.helper:
        FMUL R1, R1, R1
        RET.REL.NODEC R20 `(k)
    """
    assert loops(text) == [(1, 2, 1)]
    assert cycles(()) == ()
    assert counted("k", ()).hot is None


def test_a_loop_with_two_entries_is_no_natural_loop() -> None:
    text = "@P0 BRA `(.L_x_1)\n.L_x_0:\n FADD R1, R1, R1\n.L_x_1:\n FMUL R1, R1, R1\n@P1 BRA `(.L_x_0)\n EXIT"
    assert loops(text) == []


def test_thousands_of_blocks_and_loops_take_no_time() -> None:
    deep = "\n".join(f".L_x_{n}:\n FADD R1, R1, R1" for n in range(600))
    deep += "\n" + "\n".join(f"@P0 BRA `(.L_x_{n})" for n in reversed(range(600)))
    flat = "\n".join(f".L_x_{n}:\n FADD R1, R1, R1\n@P0 BRA `(.L_x_{n})" for n in range(3000))
    started = time.perf_counter()
    assert len(counted("k", code(deep)).loops) == 12
    assert len(counted("k", code(flat)).loops) == 12
    assert time.perf_counter() - started < 15


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("LDG.E.128 R4, desc[UR4][R2.64]", "global load 128"),
        ("LDG.E.EF.LTC128B.CONSTANT R8, desc[UR4][R2.64+0x10]", "global load 32"),
        ("@!P0 STG.E.U16 desc[UR4][R2.64], R4", "global store 16"),
        ("LDS.U.128 R4, [R2]", "shared load 128"),
        ("LDSM.16.M88.4 R4, [R2]", "matrix load"),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R5], desc[UR18][R24.64], P0", "async copy 128"),
        ("UTMALDG.2D [UR8], [UR4]", "bulk load"),
        ("UBLKCP.S.G [UR4], [UR6], UR8", "bulk copy"),
        ("STL.64 [R1+0x8], R3", "spill store 64"),
        ("IMMA.16832.S8.S8 R4, R4.ROW, R6.COL, R4", "tensor core"),
        ("LDGDEPBAR", "wait for copies"),
        ("WARPGROUP.DEPBAR.LE gsb0, 0x0", "barrier"),
        ("ATOMG.E.ADD.STRONG.GPU PT, R2, desc[UR4][R2.64], R5", "atomic"),
        ("XYZZY R1, R2", "integer and other"),
    ],
)
def test_instructions_have_a_class(text: str, name: str) -> None:
    assert class_of(Instruction(0, text)) == name


def test_cache_hints_are_kinds() -> None:
    kernel = sass("LDG.E.EF.LTC128B.CONSTANT R8, [R2.64]\nLDG.E.128 R8, [R2.64]\nSTG.E.EF [R2.64], R8\nEXIT")
    assert kernel.whole.kinds == {"LDG.EF.LTC128B.CONSTANT": 1, "STG.EF": 1}


def test_the_words_that_some_releases_print_behind_an_instruction_are_left_out() -> None:
    lines = [
        "        /*0010*/                   S2R R0, SR_TID.X           &wr=0x1          ?trans6;      "
        "/* 0x0000000000007919 */",
        "                                                              /* 0x000e6c0000002100 */",
        "        /*0020*/               @P0 LDG.E R2, desc[UR4][R2.64]    &req={1} &wr=0x2  ?trans2; /* 0x0 */",
    ]
    (first, second), more = instructions(lines)
    assert more == 0
    assert first.text == "S2R R0, SR_TID.X"
    assert first.issue == Control(stall=6, writes=1)
    assert second.text == "@P0 LDG.E R2, desc[UR4][R2.64]"
    assert (second.predicate, second.opcode, second.control) == ("P0", "LDG.E", -1)


def test_what_is_too_long_is_cut_and_counted() -> None:
    lines = (f"        /*{16 * n:04x}*/  FADD R1, R1, R1 ;" for n in range(MOST_INSTRUCTIONS + 7))
    kept, more = instructions(lines)
    assert (len(kept), more) == (MOST_INSTRUCTIONS, 7)


def test_garbage_is_no_instruction() -> None:
    assert instructions(["\0\x1b[2J", "/*zz*/ FADD ;", '//## File "', "{" * 5000, "/*0000*/", ""]) == ((), 0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("FFMA R4, R4, R5, R6", "FFMA R14, R14.reuse, R5, R9"),
        ("@!P0 LDG.E R8, desc[UR4][R2.64+0x10]", "@!P3 LDG.E R9, desc[UR8][R12.64]"),
        ("IMAD.MOV.U32 R1, RZ, RZ, R7", "MOV R3, R4"),
        ("HFMA2.MMA R19, -RZ, RZ, 0, 0", "MOV R13, RZ"),
        ("VIADD R1, R2, 0x80", "IADD3 R9, R4, 0x80, RZ"),
        ("LDC R1, c[0x0][0x28]", "LDC R2, c[0x0][0x37c]"),
        ("BRA `(.L_x_1)", "BRA `(.L_x_7)"),
        ("STS.128 [R5+UR4+0x1000], R8", "STS.128 [R6+UR7], R12"),
    ],
)
def test_registers_offsets_labels_and_the_unit_that_moves_are_no_difference(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("LDG.E R4, [R2.64]", "LDG.E.128 R4, [R2.64]"),
        ("FADD R1, R1, R2", "FADD R1, R1, RZ"),
        ("FADD R1, R1, -R2", "FADD R1, R1, R2"),
        ("@P0 FADD R1, R1, R2", "@!P0 FADD R1, R1, R2"),
    ],
)
def test_what_means_something_else_stays_a_difference(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


def test_the_order_within_a_stretch_is_no_difference_but_that_around_a_barrier_is() -> None:
    one = "FADD R1, R2, R3\nLDS R4, [R5]\nBAR.SYNC 0x0\nSTS [R5], R4"
    assert in_sets(code(one)) == in_sets(code("LDS R7, [R1]\nFADD R6, R8, R9\nBAR.SYNC 0x0\nSTS [R2], R7"))
    assert in_sets(code(one)) != in_sets(code("LDS R4, [R5]\nBAR.SYNC 0x0\nFADD R1, R2, R3\nSTS [R5], R4"))


def test_what_matters_comes_first_and_constants_of_addresses_are_no_difference() -> None:
    told = in_sets(code("MOV R1, 0x1\nIADD3 R1, R1, 0x400, RZ\nIADD3 R2, R1, 0x80, RZ\nFADD R3, R3, 1\nLDG.E R4, [R2]"))
    assert told == ["  1x LDG.E R, [R]", "  1x FADD R, R, 1", "  2x IADD3 R, R, #, RZ", "  1x MOV R, 0x1"]


def test_kernels_are_paired_by_name_then_by_order() -> None:
    told = difference([sass("EXIT", "a"), sass("EXIT", "b")], [sass("FADD R1, R1, R1\nEXIT", "b"), sass("EXIT", "c")])
    assert "b: the kernel 1 instruction -> 2 instructions: +1 float" in told
    assert "a -> c: " in told
    assert difference([sass("EXIT", "a")], []) == "a is gone"
    assert difference([], [sass("EXIT", "a")]) == "a is new: 1 instruction"


def test_a_loop_that_comes_or_goes_is_told() -> None:
    straight, looped = sass("FADD R1, R1, R1\nEXIT"), sass(".L_x_0:\n FADD R1, R1, R1\n@P0 BRA `(.L_x_0)\n EXIT")
    assert "now with a loop: 2 instructions" in difference([straight], [looped])
    assert "no loop any more" in difference([looped], [straight])


def test_loops_that_are_unrolled_differently_compare_by_cycles_per_byte() -> None:
    part = Part(9, 96, {"global load 128": 2, "async copy 64": 1, "shared load 128": 7, "global load 8": 8})
    assert part.loaded_bytes == 48
    assert part.cycles_per_byte == 2.0
    assert Part(9, 0, {"global load 128": 2}).cycles_per_byte is None
    assert Part(9, 9, {"global load odd": 2}).cycles_per_byte is None


def test_a_difference_is_bounded_and_quick() -> None:
    names = [f"OP{n:05}.X R1" for n in range(6000)]
    one, other = sass("\n".join(names[:5000])), sass("\n".join(f"{n}, R2" for n in names))
    started = time.perf_counter()
    told = difference([one], [other], most_lines=30)
    assert len(told.splitlines()) < 40
    assert "more lines" in told
    assert time.perf_counter() - started < 20


def test_numbers_that_changed_are_told_largest_first() -> None:
    assert deltas({"a": 64, "b": 1, "c": 5}, {"d": 16, "b": 2, "c": 5}) == "-64 a, +16 d, +1 b"
    assert deltas({"a": 1}, {"a": 1}) == ""


def test_ptx_is_compared_without_numbers_of_registers_and_debug_lines() -> None:
    one = ".loc 1 5 0\nadd.s32 %r1, %r2, %r3; // here\n$L__BB0_2:\nld.global.b32 %r4, [%rd1];\n"
    same = "add.s32  %r7, %r8, %r9;\n\n$L__BB0_4:\nld.global.b32 %r1, [%rd7];\n"
    assert ptx_difference(one, same, "a", "b") == ""
    told = ptx_difference(one, same.replace("ld.global.b32", "ld.global.L1::evict_first.b32"), "a", "b")
    assert told.startswith("--- a\n+++ b\n@@ ")
    assert "\n-ld.global.b32 %r4, [%rd1];\n+ld.global.L1::evict_first.b32 %r1, [%rd7];\n" in told
    assert "too many to compare" in ptx_difference("ret;\n" * 9000, "", "a", "b")


def test_what_a_confined_worker_says_is_made_plain() -> None:
    evil = "\x1b[2J\n"
    said = Sass(evil, (Instruction(0, evil, evil, file=evil),), Part(1, 1, {evil: 1}, {evil: 1}, (evil,)), ptx=evil)
    plain = made_plain(said)
    words = [
        plain.name,
        plain.instructions[0].text,
        plain.instructions[0].label,
        *plain.whole.classes,
        *plain.whole.notes,
    ]
    assert all(word.isprintable() for word in words)
    assert plain.ptx.replace("\n", "").isprintable()
    with pytest.raises(ValueError, match="an instruction that there is not"):
        made_plain(Sass("k", (), Part(), (Loop((0,), 1, False, Part()),)))
    with pytest.raises(ValueError, match="20001 instructions, where 20000 are kept"):
        made_plain(Sass("k", (Instruction(0, "NOP"),) * (MOST_INSTRUCTIONS + 1), Part()))
