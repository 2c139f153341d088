import pytest

from kerneltune.tools.languages.ptx import PtxError
from kerneltune.tools.languages.ptx.loader import render


def test_names_and_expressions_are_filled_in() -> None:
    assert render("mov.u32 %r1, ${4 * UNROLL}; {%r1, %r2}", {"UNROLL": 2}) == "mov.u32 %r1, 8; {%r1, %r2}"


def test_statements_are_lines_that_other_readers_take_for_comments() -> None:
    text = "//: for i in range(N)\nadd.u32 %r${i}, 1, 1;\n//: endfor\n  //: if N > 1\nbar.sync 0;\n//: endif\n"
    assert render(text, {"N": 2}) == "add.u32 %r0, 1, 1;\nadd.u32 %r1, 1, 1;\nbar.sync 0;\n"
    assert render(text, {"N": 1}) == "add.u32 %r0, 1, 1;\n"


def test_ordinary_comments_and_percent_signs_stay() -> None:
    text = "// {{ x }} {% y %} {# z #}\nmov.u32 %r1, %tid.x; // : not a statement\n"
    assert render(text, {}) == text


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a\nb ${M}", 2, "'M' is undefined: b"),
        ("a\nb\n${1 // 0}", 3, "ZeroDivisionError"),
        ("a\n//: for i in range(3)\nb", 3, "endfor"),
        ("${", 1, "template"),
        ("a\n${N.x.y}", 2, "cannot be filled in"),
        ("a\n${N + 'x'}", 2, "TypeError"),
    ],
)
def test_what_goes_wrong_is_told_with_the_template_s_line(text: str, line: int, words: str) -> None:
    with pytest.raises(PtxError, match=words) as raised:
        render(text, {"N": 1})
    assert raised.value.line == line
