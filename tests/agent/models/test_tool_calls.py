"""Tool calls as models write them: JSON, within text, and as plain text with a source."""

import pytest

from kerneltune.agent.models import tool_calls
from kerneltune.agent.models.tool_calls import parse_call, split_text
from kerneltune.tools.schema.codec import Json
from tests.agent.models.talk import BENCH, UPDATE

NAMES = {"bench", "update"}
ONE = '{"name": "bench", "arguments": {"attempt": 1}}'


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{ONE}\n```",
        f"```\n{ONE}\n```",
        f"<tool_call>\n{ONE}\n</tool_call>",
        f"<tool_call>{ONE}",
        f"[TOOL_CALLS] [{ONE}]",
        f"<|python_tag|>{ONE}",
        ONE,
        '{"name": "bench", "parameters": {"attempt": 1}}',
        '{"type": "function", "function": {"name": "bench", "arguments": "{\\"attempt\\": 1}"}}',
        '<function=bench>{"attempt": 1}</function>',
        "<tool_call>\n<function=bench>\n<parameter=attempt>\n1\n</parameter>\n</function>\n</tool_call>",
    ],
)
def test_a_call_in_any_dress_is_a_call(text: str) -> None:
    split = split_text(text, NAMES)
    assert [(call.name, call.arguments, call.problem) for call in split.calls] == [("bench", {"attempt": 1}, "")]
    assert split.text == ""


def test_words_around_calls_stay() -> None:
    split = split_text(f"First this.\n```json\n{ONE}\n```\n<tool_call>{ONE}</tool_call>\nThen wait.", NAMES)
    assert len(split.calls) == 2
    assert split.text.split() == ["First", "this.", "Then", "wait."]


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"name": "rm", "arguments": {}}\n```',
        '```json\n{"shape": [1, 2]}\n```',
        "```python\nbench(1)\n```",
        "[1, 2, 3]",
        "null",
        "{",
        '{"name": ["bench"]}',
        "x" * 100_000 + "[" * 100_000,
    ],
)
def test_what_names_no_known_tool_is_text(text: str) -> None:
    assert split_text(text, NAMES).calls == ()
    assert split_text(text, NAMES).text == text


def test_source_in_an_xml_parameter_stays_as_it_is() -> None:
    source = "x = {}\nif x < 3:\n    pass"
    text = f"<function=update><parameter=source>\n{source}\n</parameter><parameter=parent>null</parameter></function>"
    assert split_text(text, NAMES).calls[0].arguments == {"source": source, "parent": None}


def test_thinking_in_tags_is_not_part_of_the_text() -> None:
    split = split_text(f"<think>\nMaybe {ONE}?\n</think>\n\nNo.", NAMES)
    assert (split.text, split.calls) == ("No.", ())
    assert split.thinking.startswith("Maybe")


@pytest.mark.parametrize(
    ("text", "values", "problem"),
    [
        ("", {}, ""),
        ('{"a": 1}', {"a": 1}, ""),
        ('"{\\"a\\": 1}"', {"a": 1}, ""),
        ('{"a": "two\nlines"}', {"a": "two\nlines"}, ""),
        ("[1]", {}, "the arguments are a JSON list, not an object"),
        ('"words"', {}, "the arguments are a JSON str, not an object"),
        ("{", {}, "the arguments are not JSON"),
        ("[" * 100_000, {}, "the arguments are not JSON"),
        ('{"a": NaN}', {}, "the arguments are not JSON: NaN is no JSON number"),
        ('{"a": [-Infinity]}', {}, "the arguments are not JSON: -Infinity"),
        ('{"a": 1e999}', {}, "the arguments are not JSON: 1e999"),
        ('"{\\"a\\": NaN}"', {}, "the arguments are a JSON str"),
    ],
)
def test_arguments_are_read_as_far_as_they_make_sense(text: str, values: Json, problem: str) -> None:
    call = parse_call("c", "bench", text)
    assert call.arguments == values
    assert call.problem.startswith(problem)
    assert bool(call.problem) == bool(problem)


# Calls as plain text with a source

SOURCE = 'import triton\n\n# parent: not a field here\nx = "é\\n"\n'


def parse(text: str) -> dict[str, Json]:
    return tool_calls.parse_source_call(UPDATE, text)


def values(**given: Json) -> dict[str, Json]:
    return {"parent": None, "rationale": "why", "source": SOURCE, "edits": None} | given


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"# parent: 3\n# rationale: why\n{SOURCE}", values(parent=3)),
        (f"# rationale: why\n{SOURCE}", values()),
        (f"#parent:none\n#  Rationale :  why\n\n{SOURCE}", values()),
        (f"\n# parent: #12\n# rationale: a\n#   b\n#   c\n{SOURCE}", values(parent=12, rationale="a b c")),
        (f"```python\n# parent: 3\n# rationale: why\n{SOURCE}```", values(parent=3, source=SOURCE.rstrip())),
        (f"# parent: 3\r\n# rationale: why\r\n{SOURCE}", values(parent=3)),
        (f"# A softmax\n# rationale: why\n{SOURCE}", values(source=f"# A softmax\n{SOURCE}")),
        (f"# parent: the third\n# rationale: why\n{SOURCE}", values(parent="the third")),
        (f"# rationale: why\n# rationale: twice\n{SOURCE}", values(source=f"# rationale: twice\n{SOURCE}")),
        ("# parent: 3\n# rationale: why\n", values(parent=3, source="")),
    ],
)  # fmt: skip
def test_comment_lines_carry_the_other_arguments(text: str, wanted: dict[str, Json]) -> None:
    assert parse(text) == wanted


def test_what_is_required_and_not_there_is_left_out_for_others_to_name() -> None:
    assert parse(SOURCE) == {"parent": None, "source": SOURCE, "edits": None}
    assert parse("") == {"parent": None, "source": "", "edits": None}


def test_what_is_written_is_read_back() -> None:
    assert parse(tool_calls.write_source_call(UPDATE, values(parent=7))) == values(parent=7)


def test_the_description_names_every_field_that_a_line_can_carry() -> None:
    said = tool_calls.source_tool_description(UPDATE)
    assert "# parent: <number of the attempt that this one changes>" in said
    assert "# rationale: <why this will be faster>" in said
    assert "edits" not in said
    assert tool_calls.source_tool_name(UPDATE) == "update_source"
    assert BENCH.source is None
