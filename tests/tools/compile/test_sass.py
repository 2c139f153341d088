"""Real cubins, made without a GPU and disassembled: lines, loops, counts; and files that no disassembler reads."""

import inspect
import struct
import subprocess
from pathlib import Path

import pytest

from kerneltune.agent.commands.show import _ptx_difference
from kerneltune.tools.compile.compiler import CannotDisassemble, disassemble, disassemble_all, noted_ptx
from kerneltune.tools.languages.ptxas import ptxas
from kerneltune.tools.schema.messages import SassRequest
from kerneltune.tools.schema.sass import (
    MOST_INSTRUCTIONS,
    Census,
    Sass,
    SassInstruction,
    changes,
    class_of,
    counted,
    deltas,
    instructions,
    listing,
    made_plain,
)
from tests.tools.compile import sass_kernels
from tests.tools.compile.sass_kernels import FILE, compiled

ROWS = "*fp32 *fp32 i32"
_FLAGS = 48  # where an ELF file names its architecture


@pytest.fixture(scope="module")
def row_sum() -> bytes:
    return compiled(sass_kernels.row_sum, ROWS, 1024)


def read(cubin: bytes, folder: Path) -> Sass:
    return disassemble(cubin, folder)


def test_a_kernel_is_counted_with_its_lines_accesses_and_cache_hints(row_sum: bytes, tmp_path: Path) -> None:
    sass = read(row_sum, tmp_path)
    assert sass.name == "row_sum"
    lines, first = inspect.getsourcelines(sass_kernels.row_sum.fn)
    loads = first + next(n for n, line in enumerate(lines) if "the loop's body" in line)
    assert loads in {i.line for i in sass.instructions if i.file == FILE}
    assert sass.whole.classes["global load 128"] == 2
    assert sass.whole.kinds["LDG.EF"] == 2
    assert len(sass.instructions) == sass.whole.instructions < sass.whole.issue_cycles
    assert "shuffle" in sass.whole.classes


def test_the_listing_shows_source_line_ptx_line_and_issue(row_sum: bytes, tmp_path: Path) -> None:
    sass = read(row_sum, tmp_path)
    load = next(line for line in listing(sass).splitlines() if "LDG.E.EF.128" in line)
    place, ptx, address, issue, *code = load.split()
    assert place.endswith(":" + str(next(i.line for i in sass.instructions if i.head == "LDG")))
    assert "ld.global" in sass.ptx.split("\n")[int(ptx) - 1]
    assert int(address, 16) > 0
    assert issue.startswith("B")
    assert ":W-" not in issue  # a load sets a scoreboard
    assert " ".join(code).startswith("@!P0 LDG.E.EF.128 R")


@pytest.mark.parametrize("arch", [80, 90, 100, 120])
def test_tensor_core_operations_are_counted_by_shape_on_every_generation(arch: int, tmp_path: Path) -> None:
    sass = read(compiled(sass_kernels.product, "*fp16 *fp16 *fp32 i32", 64, arch=arch, num_stages=3), tmp_path)
    names = {80: "HMMA.16816.F32", 90: "HGMMA.64x64x16.F32", 100: "UTCHMMA", 120: "HMMA.16816.F32"}
    assert sass.whole.kinds[names[arch]] >= 2
    assert sass.whole.classes["tensor core"] >= 2
    assert any(name.startswith("async copy") for name in sass.whole.classes)


def test_spills_are_counted(tmp_path: Path) -> None:
    cubin = compiled(sass_kernels.product, "*fp16 *fp16 *fp32 i32", 128, arch=80, num_warps=4, maxnreg=64)
    sass = read(cubin, tmp_path)
    assert any(name.startswith("spill load") for name in sass.whole.classes)


def test_what_alignment_brings_is_told_in_numbers(row_sum: bytes, tmp_path: Path) -> None:
    before = read(compiled(sass_kernels.row_sum, ROWS, 1024, aligned=False), tmp_path)
    told = changes([before], [read(row_sum, tmp_path)])
    assert "-8 global load 32" in told
    assert "+2 global load 128" in told
    assert "the same classes of instructions" in changes([before], [before])


def test_the_ptx_that_a_cubin_holds_can_be_assembled_to_the_same_instructions(row_sum: bytes, tmp_path: Path) -> None:
    given, made = tmp_path / "k.ptx", tmp_path / "k.cubin"
    given.write_text(noted_ptx(row_sum))
    program, _ = ptxas("sm_90a")
    subprocess.run([program, "-arch=sm_90a", "-lineinfo", str(given), "-o", str(made)], check=True)
    again, sass = read(made.read_bytes(), tmp_path), read(row_sum, tmp_path)
    assert [i.text for i in again.instructions] == [i.text for i in sass.instructions]
    assert [i.ptx_line for i in again.instructions] == [i.ptx_line for i in sass.instructions]
    assert {i.line for i in again.instructions} == {0}  # it knows nothing of Triton any more


def test_the_assembler_is_the_one_that_knows_the_architecture() -> None:
    for_hopper, for_blackwell = ptxas("sm_90a"), ptxas("sm_100a")
    assert for_hopper[0] != for_blackwell[0]
    assert ptxas("sm_120") == for_blackwell
    assert ptxas("sm_80") == for_hopper


def test_a_cubin_of_an_architecture_that_is_not_known_ends_in_words(row_sum: bytes, tmp_path: Path) -> None:
    unknown = bytearray(row_sum)
    struct.pack_into("<I", unknown, _FLAGS, 0x0FF0FFF)
    told = disassemble_all(SassRequest("sm_90"), [bytes(unknown)], tmp_path)
    assert told.kernels == ()
    assert "nvdisasm" in told.problem
    assert "which comes with Triton, cannot read this cubin" in told.problem
    assert "\n" not in told.problem
    assert str(tmp_path) not in told.problem


@pytest.mark.parametrize("damage", [lambda c: b"", lambda c: b"hello\n" * 40, lambda c: c[:3000], lambda c: c[:64]])
def test_a_file_that_is_no_whole_cubin_ends_in_words(damage: object, row_sum: bytes, tmp_path: Path) -> None:
    damaged = damage(row_sum)  # type: ignore[operator]
    with pytest.raises(CannotDisassemble, match="cannot read this cubin"):
        disassemble(damaged, tmp_path)
    assert noted_ptx(damaged) == ""
    assert list(tmp_path.iterdir()) == []


def test_section_headers_that_lie_hold_no_ptx(row_sum: bytes) -> None:
    for offset, form, value in ((40, "<Q", 1 << 62), (58, "<H", 0), (60, "<H", 65535), (62, "<H", 65535)):
        lying = bytearray(row_sum)
        struct.pack_into(form, lying, offset, value)
        assert isinstance(noted_ptx(bytes(lying)), str)


def code(text: str) -> tuple[SassInstruction, ...]:
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
    assert class_of(SassInstruction(0, text)) == name


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
    assert first.issue == "B------:R-:W1:S06"
    assert second.text == "@P0 LDG.E R2, desc[UR4][R2.64]"
    assert (second.predicate, second.opcode, second.control) == ("P0", "LDG.E", -1)


def test_what_is_too_long_is_cut_and_counted() -> None:
    lines = (f"        /*{16 * n:04x}*/  FADD R1, R1, R1 ;" for n in range(MOST_INSTRUCTIONS + 7))
    kept, more = instructions(lines)
    assert (len(kept), more) == (MOST_INSTRUCTIONS, 7)


def test_garbage_is_no_instruction() -> None:
    assert instructions(["\0\x1b[2J", "/*zz*/ FADD ;", '//## File "', "{" * 5000, "/*0000*/", ""]) == ((), 0)


def test_bytes_loaded_count_global_memory_alone() -> None:
    classes = {"global load 128": 2, "async copy 64": 1, "shared load 128": 7, "global load 8": 8, "global load odd": 2}
    assert Census(9, 96, classes).loaded_bytes == 48


def test_changes_are_told_kernel_by_kernel_the_largest_first() -> None:
    told = changes([sass("EXIT", "a"), sass("EXIT", "b")], [sass("FADD R1, R1, R1\nEXIT", "a"), sass("EXIT", "c")])
    assert "a: the kernel 1 instruction -> 2 instructions: +1 float" in told
    assert "b -> c: " in told
    assert changes([sass("EXIT", "a")], []) == "a is gone"
    assert changes([], [sass("EXIT", "a")]) == "a is new: 1 instruction"
    assert deltas({"a": 64, "b": 1, "c": 5}, {"d": 16, "b": 2, "c": 5}) == "-64 a, +16 d, +1 b"
    assert deltas({"a": 1}, {"a": 1}) == ""


def test_ptx_is_compared_without_numbers_of_registers_and_debug_lines() -> None:
    one = ".loc 1 5 0\nadd.s32 %r1, %r2, %r3; // here\n$L__BB0_2:\nld.global.b32 %r4, [%rd1];\n"
    same = "add.s32  %r7, %r8, %r9;\n\n$L__BB0_4:\nld.global.b32 %r1, [%rd7];\n"
    assert _ptx_difference(one, same, "a", "b") == ""
    told = _ptx_difference(one, same.replace("ld.global.b32", "ld.global.L1::evict_first.b32"), "a", "b")
    assert told.startswith("--- a\n+++ b\n@@ ")
    assert "\n-ld.global.b32 %r4, [%rd1];\n+ld.global.L1::evict_first.b32 %r1, [%rd7];\n" in told
    assert "too many to compare" in _ptx_difference("ret;\n" * 9000, "", "a", "b")


def test_what_a_confined_worker_says_is_made_plain() -> None:
    evil = "\x1b[2J\n"
    said = Sass(evil, (SassInstruction(0, evil, evil, file=evil),), Census(1, 1, {evil: 1}, {evil: 1}), ptx=evil)
    plain = made_plain(said)
    words = [
        plain.name,
        plain.instructions[0].text,
        plain.instructions[0].label,
        *plain.whole.classes,
    ]
    assert all(word.isprintable() for word in words)
    assert plain.ptx.replace("\n", "").isprintable()
    with pytest.raises(ValueError, match="20001 instructions, where 20000 are kept"):
        made_plain(Sass("k", (SassInstruction(0, "NOP"),) * (MOST_INSTRUCTIONS + 1), Census()))
