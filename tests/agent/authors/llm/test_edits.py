"""Search and replace, and what is said when it does not work."""

import pytest

from kerneltune.agent.authors.llm.author import EditArguments, Mistake, apply

SOURCE = "def f(x):\n    y = x + 1\n    return y\n\n\ndef g(x):\n    y = x + 2\n    return y\n"


def edit(search: str, replace: str) -> EditArguments:
    return EditArguments(search=search, replace=replace)


def test_edits_are_made_in_order_each_on_what_the_one_before_made() -> None:
    source, notes = apply(SOURCE, [edit("x + 1", "x + 10"), edit("x + 10", "x - 10")])
    assert source == SOURCE.replace("x + 1", "x - 10")
    assert notes == ()


def test_a_text_that_is_there_more_than_once_is_refused_with_its_lines() -> None:
    with pytest.raises(Mistake, match=r"edit 2 of 2: .* found 2 times \(lines 3, 8\)"):
        apply(SOURCE, [edit("x + 1", "x"), edit("    return y", "    return 0")])


def test_a_text_that_is_not_there_is_refused_with_the_nearest_lines() -> None:
    with pytest.raises(Mistake, match=r"not in the source; the nearest lines are\n  line 2: +y = x \+ 1"):
        apply(SOURCE, [edit("y = x + 1  # one", "y = 0")])
    with pytest.raises(Mistake, match="nothing in it resembles"):
        apply(SOURCE, [edit("@@@@@@", "")])


def test_white_space_that_differs_is_forgiven_where_there_is_one_place_and_said() -> None:
    source, notes = apply(SOURCE, [edit("def g(x):\ny = x + 2", "def g(x):\n  z = x\ny = z + 2")])
    assert "matched line 6 but for white space" in notes[0]
    source, notes = apply(
        "class A:\n    def f(self):\n        return 1\n",
        [edit("def f(self):\n    return 1", "def f(self):\n    return 2")],
    )
    assert source == "class A:\n    def f(self):\n        return 2\n"
    assert "indented by +4" in notes[0]


def test_an_empty_search_is_refused() -> None:
    with pytest.raises(Mistake, match="`search` is empty"):
        apply(SOURCE, [edit("", "x")])


def test_lines_can_be_deleted() -> None:
    assert apply(SOURCE, [edit("    y = x + 2\n", "")])[0] == SOURCE.replace("    y = x + 2\n", "")
