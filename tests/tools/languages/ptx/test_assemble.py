from pathlib import Path

import pytest

from kerneltune.tools.languages.ptx import PtxError, parse
from kerneltune.tools.languages.ptx.assemble import assemble, with_candidate_lines
from tests.tools.languages.ptx.conftest import LOAD, RELU, with_lines


def error_of(text: str, folder: Path) -> PtxError:
    parse(text)  # what is wrong is for ptxas to say
    with pytest.raises(PtxError) as raised:
        assemble(text, "sm_90", folder)
    return raised.value


def test_a_cubin_comes_with_what_its_entry_takes(tmp_path: Path) -> None:
    text = with_lines(".shared .align 4 .b8 tile[512];", "bar.sync 0;", "st.shared.u32 [tile+4], %r1;")
    done = assemble(text, "sm_90", tmp_path)
    used = done.resources["relu"]
    assert done.cubin[:4] == b"\x7fELF"
    assert (used.static_shared_bytes, used.spill_store_bytes) == (512, 0)
    assert 4 <= used.registers <= 40
    assert list(tmp_path.iterdir()) == []


def test_every_entry_of_a_text_is_reported_on(tmp_path: Path) -> None:
    text = RELU + ".visible .entry other() .reqntid 32 { ret; }\n"
    assert set(assemble(text, "sm_90", tmp_path).resources) == {"relu", "other"}


def test_what_only_one_architecture_has_is_assembled_for_it(tmp_path: Path) -> None:
    text = with_lines("setmaxnreg.inc.sync.aligned.u32 64;").replace(".target sm_90", ".target sm_90a")
    assert assemble(text, "sm_90", tmp_path).cubin
    commented = with_lines("// .target sm_90a", "setmaxnreg.inc.sync.aligned.u32 64;")
    assert "sm_90a" in error_of(commented, tmp_path).message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("max.f32 %f1, %f1, %rd2;", "Arguments mismatch"),
        ("max.f32 %f1, %f1, %q2;", "Unknown symbol '%q2' (declare it"),
        ("@%p1 bra nowhere;", "Unknown symbol 'nowhere' (declare it"),
        ("max.fast.f32 %f1, %f1, %f2;", "Unknown modifier '.fast'"),
        ("max.f32 %f1, %f1;", "Arguments mismatch"),
        ("done: mov.u32 %r1, 1;", "Duplicate definition"),
        ("ld.global.v4.f64 {%f1,%f2,%f3,%f4}, [%rd5];", ""),
        ("st.const.u32 [%rd5], 1;", ""),
        ("add.f32 %f1, %f1, 1;", ""),
    ],
)
def test_an_error_has_its_line_its_text_and_what_to_do(line: str, words: str, tmp_path: Path) -> None:
    error = error_of(with_lines("", "// a comment", line), tmp_path)
    last = RELU.split("\n").index("done:") + 4 if line.startswith("done") else 24
    assert error.line == last
    assert words in error.message
    assert RELU.split("\n")[20] not in error.message
    assert line.split()[0] in error.message


def test_every_error_has_its_line(tmp_path: Path) -> None:
    error = error_of(with_lines(*["max.f32 %f1, %f1, %q2;"] * 9), tmp_path)
    assert str(error).startswith("PTX line 22: ")
    assert "PTX line 25: " in str(error)
    assert "and " in str(error).splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (RELU.replace("8.0", "9.9"), 1, "write .version"),
        (RELU.replace("8.0", "6.0"), 2, "write .version 8.0"),
        (with_lines(".shared .b8 small[8];", ".shared .b8 large[300000];",
                    "st.shared.u32 [large], 1; st.shared.u32 [small], 1;"), 23, "shared_bytes="),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_whole_is_told_where_it_can_be_mended(
    text: str, line: int, words: str, tmp_path: Path
) -> None:
    error = error_of(text, tmp_path)
    assert error.line == line
    assert words in error.message
    assert str(tmp_path) not in str(error)


def test_a_file_that_a_text_names_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.cu"
    secret.write_text("not for cubins")
    text = RELU.replace(".visible", f'.file 1 "{secret}"\n.visible').replace(LOAD, f"    .loc 1 1 1\n{LOAD}")
    assert b"not for cubins" not in assemble(text, "sm_90", tmp_path).cubin


SOURCE = 'import torch\n\nk = PtxKernel(r"""\na\nb\n""")\n'


@pytest.mark.parametrize(
    ("text", "source", "told"),
    [
        ("\na\nb\n", SOURCE, "PTX line 3, candidate line 5: no; PTX line 2, candidate line 4: nor this"),
        ("a\nb", SOURCE, "PTX line 3: no; PTX line 2, candidate line 5: nor this"),
        ("\na\nb\n", SOURCE + SOURCE, "PTX line 3: no; PTX line 2: nor this"),
        ("\nc\nd\n", SOURCE, "PTX line 3: no; PTX line 2: nor this"),
        ("", SOURCE, "PTX line 3: no; PTX line 2: nor this"),
    ],
)
def test_lines_of_the_candidate_are_told_where_the_text_stands_in_it_once(text: str, source: str, told: str) -> None:
    assert with_candidate_lines("PTX line 3: no; PTX line 2: nor this", text, source) == told


def test_lines_are_told_once() -> None:
    once = with_candidate_lines("PTX line 3: no", "\na\nb\n", SOURCE)
    assert with_candidate_lines(once, "\na\nb\n", SOURCE) == once
