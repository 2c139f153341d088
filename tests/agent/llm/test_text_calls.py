"""Tool calls that models write into their text."""

import pytest

from agent.llm import arguments
from agent.llm.text_calls import part
from tools.codec import Json

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
    parted = part(text, NAMES)
    assert [(call.name, call.arguments, call.problem) for call in parted.calls] == [("bench", {"attempt": 1}, "")]
    assert parted.text == ""


def test_words_around_calls_stay() -> None:
    parted = part(f"First this.\n```json\n{ONE}\n```\n<tool_call>{ONE}</tool_call>\nThen wait.", NAMES)
    assert len(parted.calls) == 2
    assert parted.text.split() == ["First", "this.", "Then", "wait."]


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
    assert part(text, NAMES).calls == ()
    assert part(text, NAMES).text == text


def test_source_in_an_xml_parameter_stays_as_it_is() -> None:
    source = "x = {}\nif x < 3:\n    pass"
    text = f"<function=update><parameter=source>\n{source}\n</parameter><parameter=parent>null</parameter></function>"
    assert part(text, NAMES).calls[0].arguments == {"source": source, "parent": None}


def test_thinking_in_tags_is_not_part_of_the_text() -> None:
    parted = part(f"<think>\nMaybe {ONE}?\n</think>\n\nNo.", NAMES)
    assert (parted.text, parted.calls) == ("No.", ())
    assert parted.thinking.startswith("Maybe")


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
    ],
)
def test_arguments_are_read_as_far_as_they_make_sense(text: str, values: Json, problem: str) -> None:
    read = arguments.read(text)
    assert read.values == values
    assert read.problem.startswith(problem)
    assert bool(read.problem) == bool(problem)
