"""Triton's PTX made readable: what it says, and that ptxas makes the same machine code of it."""

import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kerneltune.tools.languages.ptx import PtxError, parse
from kerneltune.tools.languages.ptx.readable import readable

STORED = Path(__file__).parent / "stored"
TEXTS = sorted(p for p in STORED.glob("*.ptx") if "clamp" not in p.stem)  # that one: see test_exact.py
HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"
ADD = (
    HEAD
    + """
.extern .shared .align 16 .b8 global_smem[];
                                        // @add
.visible .entry add(
	.param .u64 .ptr .global .align 1 add_param_0,
	.param .u32 add_param_1,
	.param .u64 .ptr .global .align 1 add_param_2,
	.param .u64 .ptr .global .align 1 add_param_3
)
.reqntid 64
{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<20>;
	.reg .b64 	%rd<6>;
	.loc	1 4 0                          // candidate.py:4:0
$L__func_begin0:
	.loc	1 4 0                          // candidate.py:4:0
	ld.param.b64 	%rd1, [add_param_0];
	ld.param.b32 	%r9, [add_param_1];
	.loc	1 5 0                          // candidate.py:5:0
	mov.u32 	%r1, %tid.x;
	and.b32 	%r2, %r1, 31;
	.loc	1 6 0                          // candidate.py:6:0
	setp.lt.s32 	%p1, %r1, %r9;
	.loc	1 7 0                          // candidate.py:7:0
	mad.wide.s32 	%rd2, %r1, 4, %rd1;
	// begin inline asm
	mov.u32 %r3, 0x0;
	@%p1 ld.global.b32 { %r3 }, [ %rd2 + 0 ];
	// end inline asm
	// begin inline asm
	mov.u32 %r4, 0x0;
	ld.global.b32 { %r4 }, [ %rd2 + 256 ];
	// end inline asm
	.loc	2 3 0                          // standard.py:3:0 @[ candidate.py:8:7 ]
	{
	.reg .b32 t;
	add.f32 t, %r3, 0f3FC00000;
	mov.b32 %r5, t;
	}
$L__tmp0:
	@%p1 bra $L__BB0_2;
$L__BB0_1:
	add.f32 	%r5, %r5, %r4;
	setp.gt.f32 	%p2, %r5, 0f00000000;
	@%p2 bra $L__BB0_1;
$L__BB0_2:
	st.global.b32 [ %rd2 + 0 ], { %r5 };
	mov.b32 %r6, global_smem;
	st.shared.b32 [ %r6 + 0 ], %r2;
	ret;
$L__func_end0:
}
	.file	1 "candidate.py"
	.section	.debug_abbrev
	{
.b8 1                                   // Abbreviation Code
	}
"""
)
SOURCE = """import triton

@triton.jit
def add(x, n, B):
    i = tl.arange(0, B)
    m = i < n
    v = tl.load(x + i)
    w = helper(v)
"""


def test_the_text_names_arguments_and_quotes_the_source() -> None:
    text = readable(ADD, names=["x", "n"], source=SOURCE)
    for line in (
        "// add: 64 threads a CTA; what it is given:",
        "//   x: .u64, pointer, accessed 4 bytes at a time, so aligned to that",
        "//   n: .u32, number",
        "    ld.param.b64 %rd1, [x];",
        "    mov.u32 %r1, %tid.x;",
        "    @%p1 ld.global.b32 %r3, [%rd2];",
        "    ld.global.b32 %r4, [%rd2+256];",
        "    add.f32 t, %r3, 0f3FC00000;  // 1.5",
        "    @%p1 bra skip_1;",
        "    // 5  i = tl.arange(0, B)",
        "    // 8  w = helper(v)",
    ):
        assert line in text.split("\n"), text


def test_debug_sections_and_labels_that_nothing_names_are_gone() -> None:
    text = readable(ADD, names=["x", "n"])
    assert not re.search(r"\.section|\.file|\.loc|\$L|inline asm", text)
    assert re.findall(r"^\w+:$", text, re.MULTILINE) == ["loop_1:", "skip_1:"]


def test_scratch_pointers_that_nothing_uses_are_no_parameters() -> None:
    (entry,) = parse(readable(ADD, names=["x", "n"])).entries
    assert [p.name for p in entry.params] == ["x", "n"]
    used = ADD.replace("[add_param_0]", "[add_param_2]")
    (entry,) = parse(readable(used, names=["x", "n"])).entries
    assert [p.name for p in entry.params] == ["x", "n", "global_scratch"]


def test_zeros_that_a_load_replaces_go_and_those_before_a_guarded_load_stay() -> None:
    text = readable(ADD, names=["x", "n"])
    assert text.count("0x0;") == 1
    assert re.search(r"mov\.u32 %(\w+), 0x0;\n    @%\w+ ld\.global\.b32 %\1,", text)


def test_lines_of_the_source_are_quoted_as_comments_and_nothing_else(same_code: Callable[[str, str], bool]) -> None:
    hostile = "\n".join([""] * 5 + ["x = 1 \\\\", "\x1b[31m */ .entry é \\"])
    found = readable(ADD, names=["x", "n"], source=hostile)
    assert "    // 7  ?[31m */ .entry ?" in found.split("\n")
    assert same_code(ADD, found)


@pytest.mark.parametrize("name", ["add", "tid", "x-y", "été", "1", "", "_", "%x", "x" * 99])
def test_any_name_becomes_one_that_the_assembler_takes(name: str, same_code: Callable[[str, str], bool]) -> None:
    assert same_code(ADD, readable(ADD, names=[name, name]))


def test_more_names_than_parameters_are_refused() -> None:
    with pytest.raises(PtxError, match="5 names for 4 parameters of 'add'"):
        readable(ADD, names=list("abcde"))


def test_readable_text_stays_as_it_is_when_it_is_made_readable_again(same_code: Callable[[str, str], bool]) -> None:
    once = readable(ADD, names=["x", "n"])
    assert same_code(once, readable(once, names=["x", "n"]))


@pytest.mark.parametrize("path", random.Random(11).sample(TEXTS, min(4, len(TEXTS))), ids=lambda p: p.stem)
def test_stored_kernels_give_the_same_machine_code(path: Path, same_code: Callable[[str, str], bool]) -> None:
    text = path.read_text()
    made = readable(text)
    assert same_code(text, made)
    assert len(made) < len(text)


@pytest.fixture
def same_code(tmp_path: Path) -> Callable[[str, str], bool]:
    """Whether two texts assemble to the same instructions."""
    from triton.backends.nvidia.compiler import get_ptxas

    ptxas = Path(get_ptxas(90).path)

    def code(text: str) -> str:
        source, cubin = tmp_path / "kernel.ptx", tmp_path / "kernel.cubin"
        source.write_text(text)
        subprocess.run([ptxas, "--gpu-name=sm_90a", source, "-o", cubin], check=True, capture_output=True)
        shown = subprocess.run([ptxas.with_name("nvdisasm"), "-c", cubin], check=True, capture_output=True, text=True)
        return re.sub(r"//.*", "", shown.stdout)

    return lambda first, second: code(first) == code(second)
