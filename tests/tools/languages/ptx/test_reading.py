"""Where a reader of PTX and ptxas could part: what one of them takes for text and the other for instructions."""

import random
import re
import subprocess
from pathlib import Path

import pytest

from kerneltune.tools.languages.ptx import PtxError, parse
from kerneltune.tools.languages.ptx.assemble import assemble
from kerneltune.tools.languages.ptx.ir import Immediate, Label, Stream, Symbol, without_comments
from kerneltune.tools.languages.ptxas import ptxas
from tests.tools.languages.ptx.conftest import HEAD, RELU, with_lines

STORE = "st.global.u32 [%rd4], 5;"


def opcodes(text: str) -> list[str]:
    return [i.name for i in parse(text).entries[0].instructions]


@pytest.mark.parametrize(
    "line",
    [
        f".loc 1 1 1 {STORE}",
        f'.pragma "a\\"; {STORE} //";',
        f'.pragma "a\nb"; {STORE}',
        f"/* /* */ {STORE} // */",
        f"// \\\n{STORE}",
        "st . global . u32 [%rd4], 5;".replace(" . ", " ."),
        "st/* */.global// a\n.u32 [%rd4], 5;",
        f"{{ {STORE} }}",
        f"again: {STORE}",
        f"ts: .branchtargets done; {STORE}",
    ],
)
def test_a_store_that_ptxas_sees_is_seen(line: str, tmp_path: Path) -> None:
    text = with_lines(line)
    assert opcodes(text).count("st.global.u32") == 1
    assemble(text, "sm_90", tmp_path)


@pytest.mark.parametrize("line", [f"// {STORE}", f"/* {STORE}\n */", f'.pragma "{STORE}";', f"// x\r {STORE}"])
def test_a_store_that_ptxas_does_not_see_is_none(line: str, tmp_path: Path) -> None:
    text = with_lines(line)
    assert opcodes(text) == opcodes(RELU)
    assert assemble(text, "sm_90", tmp_path).resources["relu"].registers > 0


def test_ptxas_sees_no_comment_and_the_same_lines() -> None:
    bare = without_comments('a // größer\n/* b\n c */ "// kept /*" d // e')
    assert bare == 'a  \n \n "// kept /*" d  '


@pytest.mark.parametrize("strange", ["\0", "\x1a", "é", "\u2028", "\x7f"])
def test_what_is_no_plain_text_may_stand_in_comments_only(strange: str, tmp_path: Path) -> None:
    with pytest.raises(PtxError, match="cannot read"):
        parse(with_lines(f"{strange}ret;"))
    with pytest.raises(PtxError, match="cannot read"):
        parse(with_lines(f'.pragma "{strange}";'))
    assemble(with_lines(f"// {strange}"), "sm_90", tmp_path)


def test_a_preprocessor_s_lines_are_refused_by_name() -> None:
    with pytest.raises(PtxError, match="without a preprocessor"):
        parse('# 1 "a.ptx"\n' + RELU.replace(".visible", '#line 3 "b"\n.visible'))


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1+2*3", 7), ("(1+2)*3", 9), ("7/-2", -3), ("-7 % 4", 1), ("1<<65", 2), ("~0>>63", 1), ("-1>>63", -1),
        ("1?2:3", 2), ("0x8000000000000000>>63", 1), ("(.s64)0xffffffffffffffff", -1), ("WARP_SZ*2", 64), ("010", 8),
        ("1<2", 1), ("3U-4U>0", 1), ("!5", 0), ("1||0&&0", 1), (".5", 0.5), ("2 == 2.0", 1),
    ],
)  # fmt: skip
def test_a_constant_expression_has_the_value_that_ptxas_gives_it(written: str, value: float) -> None:
    assert Stream(f"{written};").constant() == Immediate(value)


@pytest.mark.parametrize("written", ["1/0", "1 % 0", "1.5 % 2", "1.5<<1", "~1.5", "1+", "(1", "1?2", "(" * 99 + "1"])
def test_an_expression_without_a_value_is_refused(written: str) -> None:
    with pytest.raises(PtxError):
        Stream(f"{written};").constant()


def test_labels_and_variables_of_inner_scopes_are_their_own() -> None:
    scope = "{ .shared .b32 v; bra end; st.shared.u32 [v], 1; end: }"
    body = parse(with_lines(scope, scope, "bra done;")).entries[0].body
    labels = [item.name for item in body if isinstance(item, Label)]
    branches = [i.operands[0] for i in parse(with_lines(scope, scope, "bra done;")).entries[0].instructions
                if i.opcode == "bra"]  # fmt: skip
    assert labels == ["end@1", "end@2", "done"]
    assert branches == [Symbol("done"), Symbol("end@1"), Symbol("end@2"), Symbol("done")]


@pytest.mark.parametrize(
    "text",
    [
        with_lines("{" * 100_000),
        with_lines("mov.b64 %rd1, " + "{" * 100_000),
        with_lines("mov.b32 %r1, " + "(" * 100_000),
        with_lines("mov.b32 %r1, " + "1?" * 100_000),
        with_lines("setp.eq.u32 " + "a|" * 100_000),
        with_lines("ld.global.f32 %f1, " + "[a, " * 100_000),
        with_lines(".reg .b32 %a<99999>, %b<99999>;"),
        with_lines(".shared .b8 a" + "[99999999]" * 1000 + ";"),
        RELU.replace("8.0", "8" * 9000 + ".0"),
        RELU.replace("sm_90", "sm_90, sm_100a"),
        with_lines("mov.b32 %r1, " + "9" * 9000 + ";"),
        RELU.replace(".u64 y", ".u" + "9" * 9000 + " y"),
        with_lines(".shared .align 4 .b8"),
        HEAD + ".section .debug { .b8 1",
    ],
)
def test_no_text_ends_its_reader(text: str) -> None:
    with pytest.raises(PtxError):
        parse(text)


def test_an_entry_may_be_declared_before_it_is_defined(tmp_path: Path) -> None:
    text = HEAD + ".visible .entry relu(.param .u64 y, .param .u64 x, .param .u32 n);\n" + RELU.removeprefix(HEAD)
    assert [e.name for e in parse(text).entries] == ["relu"]
    assert set(assemble(text, "sm_90", tmp_path).resources) == {"relu"}


SNIPPETS = (
    "//", "/*", "*/", "/* x */", "// y\n", '"', "\\", '"a"',
    "\n", "\r", "\x0c", "\x1a", "#", '# 3 "x"\n', '.pragma "a\\";',
    ".loc 1 1 1 ", "{", "}", "(", ")", ";", ",", ":", "L9:", "@%p1 ", "!", "-", "~",
    ".reg .b32 zq;", ".shared .b32 zs;",
    ".global .b32 zg;", ".param .b32 zp;", "ret;", "trap;", "mov.u32 %r1, 1+2;", "mov.u32 %r1, %tid .x;", ".visible ",
    ".func zf { ret; }", ".visible .entry ze() { ret; }", ".section .s { .b8 1 }", "010",
    "1.5", "U", "%", ".x", "WARP_SZ",
)  # fmt: skip


def raw(text: str, folder: Path) -> tuple[set[str], bytes] | None:
    """The entries that ptxas says it compiles and the code it makes, of a text as it is; None where it refuses."""
    source, image = folder / "raw.ptx", folder / "raw.cubin"
    source.write_bytes(text.encode())
    command = [ptxas("sm_90")[0], "-v", "-O0", "--gpu-name=sm_90", str(source), "-o", str(image)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    if done.returncode:
        return None
    return set(re.findall(r"Compiling entry function '([^']+)'", done.stderr + done.stdout)), image.read_bytes()


def test_what_both_accept_both_read_alike(tmp_path: Path) -> None:
    """A text with strange things in it: the same entries, and the same code without its comments."""
    draw, both = random.Random(7), 0
    for _ in range(120):
        places = [m.start() for m in re.finditer(r"[\s;,{}()\[\]]", RELU)]
        at = draw.choice(places)
        text = RELU[:at] + draw.choice(SNIPPETS) + RELU[at:]
        try:
            names = {entry.name for entry in parse(text).entries}
        except PtxError:
            continue
        if (theirs := raw(text, tmp_path)) is None:
            continue
        both += 1
        assert names == theirs[0], text
        assert raw(without_comments(text), tmp_path) == theirs, text
    assert both > 15
