"""Machine code told from a cubin's bytes: held against what the disassembler prints of the same cubins."""

from pathlib import Path

import pytest

from tests.tools.plan import sass_kernels
from tests.tools.plan.sass_kernels import compiled
from tools.plan.messages import count_code
from tools.plan.sass import disassemble
from tools.ptx.assemble import assemble

STORED = sorted((Path(__file__).parents[1] / "ptx" / "stored").glob("*.ptx"))
TEXT = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 y)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<2>;
    ld.param.u64 %d0, [y];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %d1, %r0, 4;
    add.s64 %d1, %d1, %d0;
    add.u32 %r1, %r0, 5;
    st.global.b32 [%d1], %r1;
    ret;
}
"""


def cubin_of(text: str, folder: Path, arch: str = "sm_90") -> bytes:
    return assemble(text, arch, folder).cubin


@pytest.mark.parametrize("path", STORED[:8], ids=lambda path: path.stem)
def test_it_counts_what_the_disassembler_shows(path: Path, tmp_path: Path) -> None:
    cubin = cubin_of(path.read_text(), tmp_path)
    whole, counted = disassemble(cubin, tmp_path).whole, count_code(cubin)
    assert (counted.instructions, counted.issue_cycles) == (whole.instructions, whole.issue_cycles)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90"])
def test_it_counts_the_same_on_each_generation(arch: str, tmp_path: Path) -> None:
    cubin = cubin_of(TEXT, tmp_path, arch)
    assert count_code(cubin).instructions == disassemble(cubin, tmp_path).whole.instructions > 4


def test_it_counts_what_triton_makes_too(tmp_path: Path) -> None:
    cubin = compiled(sass_kernels.row_sum, "*fp32 *fp32 i32", 1024)
    whole, counted = disassemble(cubin, tmp_path).whole, count_code(cubin)
    assert (counted.instructions, counted.issue_cycles) == (whole.instructions, whole.issue_cycles)


def test_names_and_comments_are_no_other_code_and_a_number_is(tmp_path: Path) -> None:
    code = count_code(cubin_of(TEXT, tmp_path))
    renamed = TEXT.replace("%r1", "%r3").replace("    ret;", "    // done\n    ret;")
    assert count_code(cubin_of(renamed, tmp_path)) == code
    other = count_code(cubin_of(TEXT.replace("%r0, 5", "%r0, 6"), tmp_path))
    assert other.instructions == code.instructions
    assert other.sha256 != code.sha256


def test_what_is_no_cubin_is_an_error() -> None:
    with pytest.raises(ValueError, match="64-bit ELF"):
        count_code(b"no cubin")
