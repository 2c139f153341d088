"""The templates: what is stored is what is rendered, and nothing is left out silently."""

from pathlib import Path

import pytest
from jinja2 import TemplateNotFound, UndefinedError

from kerneltune.prompts import clip, code, render
from tests.prompts.renderings import GOLDEN, renderings

TEMPLATES = Path(__file__).resolve().parents[2] / "prompts"


def test_every_prompt_is_the_stored_one_word_for_word() -> None:
    stored = {path.name: path.read_text(encoding="utf-8") for path in GOLDEN.glob("*.txt")}
    assert renderings() == stored, "if this is meant: python -m tests.prompts.renew"


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="trouble"):
        render("nudge.j2")


@pytest.mark.parametrize("missing", ["task", "hardware", "timed", "light"])
def test_a_missing_value_is_an_error_in_parts_of_a_prompt_too(missing: str) -> None:
    task = {"name": "", "precision": "", "notes": "", "source": "", "cases": [{"name": ""}], "unlisted": 0}
    values = {"task": task, "hardware": None, "timed": True, "light": None, "arch": "sm_90", "gpu_name": ""}
    del values[missing]
    with pytest.raises(UndefinedError):
        render("system.j2", language="triton", language_name="Triton", imports="", language_prompt="", **values)


def test_an_unknown_template_is_an_error() -> None:
    with pytest.raises(TemplateNotFound):
        render("no_such.j2")


def test_every_template_is_rendered_somewhere() -> None:
    """A GPU's or a language's template says something that no other one says, and that is in a stored prompt."""
    stored = "\n".join(path.read_text(encoding="utf-8") for path in GOLDEN.glob("*.txt"))
    for path in [*TEMPLATES.glob("gpu/*.j2"), *TEMPLATES.glob("../tools/languages/*/prompt.j2")]:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("- ")]
        plain = [line for line in lines if "{" not in line]
        assert plain
        assert all(line in stored for line in plain), path.name


def test_no_prompt_has_gaps_or_traces_of_its_template() -> None:
    for name, text in renderings().items():
        assert "\n\n\n\n" not in text, name
        outside = [line for i, block in enumerate(text.split("```")) if i % 2 == 0 for line in block.splitlines()]
        assert not [line for line in outside if "{%" in line or "None" in line], name


@pytest.mark.parametrize(
    "source", ["{{ 7 * 7 }} {% for x in y %}", "a\n```\nend of the block\n```", "<b>&amp;</b>", "x\n    y\t\n"]
)
def test_code_stays_word_for_word_whatever_it_holds(source: str) -> None:
    block = code(source).split("\n")
    fence = block[-1]
    assert block[0] == f"{fence}python"
    assert "\n".join(block[1:-1]) == source.strip("\n")
    assert fence not in source


def test_a_clipped_text_is_one_line_of_bounded_length() -> None:
    assert clip("a\n  b\tc", 10) == "a b c"
    assert clip("word " * 100, 20) == "word word word word…"
    assert clip("", 5) == ""
