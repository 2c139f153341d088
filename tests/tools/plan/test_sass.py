"""Real cubins, made without a GPU and disassembled: lines, loops, counts; and files that no disassembler reads."""

import inspect
import struct
import subprocess
from pathlib import Path

import pytest

from tests.tools.plan import sass_kernels
from tests.tools.plan.sass_kernels import FILE, compiled
from tools.plan.messages import SassRequest
from tools.plan.sass import CannotDisassemble, disassemble, disassemble_all, ptx_of
from tools.plan.sass_diff import difference
from tools.plan.sass_ir import Sass
from tools.plan.sass_text import listing
from tools.ptx.assemble import ptxas

ROWS = "*fp32 *fp32 i32"
_FLAGS = 48  # where an ELF file names its architecture


@pytest.fixture(scope="module")
def row_sum() -> bytes:
    return compiled(sass_kernels.row_sum, ROWS, 1024)


def read(cubin: bytes, folder: Path) -> Sass:
    return disassemble(cubin, folder)


def test_a_loop_is_found_with_its_lines_accesses_and_cache_hints(row_sum: bytes, tmp_path: Path) -> None:
    sass = read(row_sum, tmp_path)
    assert sass.name == "row_sum"
    assert sass.hot is not None
    body = sass.of(sass.hot)
    lines, first = inspect.getsourcelines(sass_kernels.row_sum.fn)
    loads = first + next(n for n, line in enumerate(lines) if "the loop's body" in line)
    assert loads in {i.line for i in body if i.file == FILE}
    assert all(i.ptx_line for i in body)
    part = sass.hot.part
    assert part.classes["global load 128"] == 2
    assert part.kinds == {"LDG.EF": 2}
    assert len(body) == part.instructions < sass.whole.instructions
    assert part.issue_cycles > part.instructions
    assert any(note.startswith("a global load is waited for ") for note in part.notes)
    assert "shuffle" in sass.whole.classes
    assert "shuffle" not in part.classes
    assert len(sass.loops) == 1  # not the branch to itself behind the end


def test_the_listing_shows_loop_source_line_ptx_line_and_issue(row_sum: bytes, tmp_path: Path) -> None:
    sass = read(row_sum, tmp_path)
    text = listing(sass)
    load = next(line for line in text.splitlines() if "LDG.E.EF.128" in line)
    mark, place, ptx, address, issue, *code = load.split()
    assert mark == "*"
    assert place.endswith(":" + str(next(i.line for i in sass.instructions if i.head == "LDG")))
    assert "ld.global" in sass.ptx.split("\n")[int(ptx) - 1]
    assert int(address, 16) > 0
    assert issue.startswith("B")
    assert ":W-" not in issue  # a load sets a scoreboard
    assert " ".join(code).startswith("@!P0 LDG.E.EF.128 R")
    assert "hot loop" in text


def test_straight_code_has_no_loop(tmp_path: Path) -> None:
    sass = read(compiled(sass_kernels.copy, "*fp32 *fp32", 512), tmp_path)
    assert sass.loops == ()
    assert sass.hot is None
    assert sass.whole.classes["global store 128"] == 1
    assert "no loop" in listing(sass)


@pytest.mark.parametrize("arch", [80, 90, 100, 120])
def test_tensor_core_operations_are_counted_by_shape_in_the_loop_of_every_generation(arch: int, tmp_path: Path) -> None:
    sass = read(compiled(sass_kernels.product, "*fp16 *fp16 *fp32 i32", 64, arch=arch, num_stages=3), tmp_path)
    assert sass.hot is not None
    names = {80: "HMMA.16816.F32", 90: "HGMMA.64x64x16.F32", 100: "UTCHMMA", 120: "HMMA.16816.F32"}
    assert sass.hot.part.kinds[names[arch]] >= 2
    assert sass.hot.part.classes["tensor core"] >= 2
    assert any(name.startswith("async copy") for name in sass.hot.part.classes)
    assert any(note.startswith("BAR ") for note in sass.hot.part.notes)
    assert any(note.startswith("DEPBAR ") for note in sass.hot.part.notes)


def test_spills_in_the_loop_are_named(tmp_path: Path) -> None:
    cubin = compiled(sass_kernels.product, "*fp16 *fp16 *fp32 i32", 128, arch=80, num_warps=4, maxnreg=64)
    sass = read(cubin, tmp_path)
    spilled = sum(n for name, n in sass.whole.classes.items() if name.startswith("spill"))
    assert spilled > 0
    assert any(name.startswith("spill load") for name in sass.whole.classes)


def test_what_alignment_brings_is_told_in_numbers_and_in_the_hot_loop(row_sum: bytes, tmp_path: Path) -> None:
    before = read(compiled(sass_kernels.row_sum, ROWS, 1024, aligned=False), tmp_path)
    told = difference([before], [read(row_sum, tmp_path)])
    assert "-8 global load 32" in told
    assert "+2 global load 128" in told
    assert "\n-  8x @!P LDG.E.EF R, desc[UR][R.64]\n" in told
    assert "\n+  2x @!P LDG.E.EF.128 R, desc[UR][R.64]\n" in told
    same = difference([before], [before])
    assert "the same classes of instructions" in same
    assert "the same instructions but for registers, addresses and order" in same


def test_the_ptx_that_a_cubin_holds_can_be_assembled_to_the_same_instructions(row_sum: bytes, tmp_path: Path) -> None:
    given, made = tmp_path / "k.ptx", tmp_path / "k.cubin"
    given.write_text(ptx_of(row_sum))
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
    assert ptx_of(damaged) == ""
    assert list(tmp_path.iterdir()) == []


def test_section_headers_that_lie_hold_no_ptx(row_sum: bytes) -> None:
    for offset, form, value in ((40, "<Q", 1 << 62), (58, "<H", 0), (60, "<H", 65535), (62, "<H", 65535)):
        lying = bytearray(row_sum)
        struct.pack_into(form, lying, offset, value)
        assert isinstance(ptx_of(bytes(lying)), str)
