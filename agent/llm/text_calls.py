"""Tool calls that a model wrote into its text, as small models and servers without a parser for them leave them.

Only what names a known tool counts as a call: any other JSON is text.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from agent.llm import arguments
from agent.llm.dialogue import Call, Tool
from tools.codec import Json

_THINK = re.compile(r"\A\s*(?:<think>)?(.*?)</think>\s*", re.DOTALL)
_TAGGED = re.compile(
    r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)|```(?:json|tool_call|tool_code)?[ \t]*\n(.*?)```"
    r"|\[TOOL_CALLS\]\s*(\[.*\])|<\|python_tag\|>\s*(\{.*\})",
    re.DOTALL,
)
_XML = re.compile(r"<function=([\w.-]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([\w.-]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


@dataclass(frozen=True)
class Parted:
    """A text taken apart. The calls have no ids yet."""

    text: str
    thinking: str
    calls: tuple[Call, ...]


def part(text: str, names: Collection[str]) -> Parted:
    """Thinking in <think> tags, calls of the tools `names`, and the rest."""
    thinking = ""
    if "</think>" in text and (thought := _THINK.match(text)):
        thinking, text = thought[1].strip(), text[thought.end() :]
    calls: list[Call] = []

    def take(found: re.Match[str]) -> str:
        inside = next((group for group in found.groups() if group is not None), "")
        made = _calls(inside, names)
        calls.extend(made)
        return "" if made else found[0]

    def take_xml(found: re.Match[str]) -> str:
        made = _xml_call(found, names)
        calls.extend(made)
        return "" if made else found[0]

    rest = _TAGGED.sub(take, text)
    if not calls:
        rest = _XML.sub(take_xml, rest)
    if not calls and (bare := _calls(text, names)):
        calls, rest = list(bare), ""
    return Parted(rest.strip() if calls else text, thinking, tuple(calls))


def _calls(text: str, names: Collection[str]) -> list[Call]:
    """The calls that `text` consists of; none when it holds anything else."""
    if made := [call for found in _XML.finditer(text) for call in _xml_call(found, names)]:
        return made
    try:
        values = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return _lines(text, names)
    return _known(values, names)


def _lines(text: str, names: Collection[str]) -> list[Call]:
    """Several calls, one a line."""
    made: list[Call] = []
    for line in text.strip().splitlines():
        try:
            made += _known(json.loads(line), names)
        except (ValueError, RecursionError):
            return []
    return made


def _known(values: Json, names: Collection[str]) -> list[Call]:
    listed = values if isinstance(values, list) else [values]
    made = [_one(value) for value in listed if isinstance(value, dict)]
    return [call for call in made if call.name in names]


def _one(value: dict[str, Json]) -> Call:
    inner = value.get("function")
    if isinstance(inner, dict):
        value = inner
    name = value.get("name") or value.get("tool") or value.get("function") or ""
    given: Json = next((value[key] for key in ("arguments", "parameters", "input", "args") if key in value), {})
    read = arguments.read(given if isinstance(given, str) else json.dumps(given))
    return Call("", str(name), read.values, read.problem)


def _xml_call(found: re.Match[str], names: Collection[str]) -> list[Call]:
    """<function=name><parameter=key>value</parameter></function>, or JSON within <function=name>."""
    if found[1] not in names:
        return []
    if parameters := _PARAMETER.findall(found[2]):
        return [Call("", found[1], {key: _value(text) for key, text in parameters})]
    read = arguments.read(found[2])
    return [Call("", found[1], read.values, read.problem)]


def _value(text: str) -> Json:
    """Numbers, lists and null as JSON; all else is text, source code above all."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, str) else value


def instructions(tools: Sequence[Tool]) -> str:
    """How a model behind a server without tool support is told of its tools."""
    described = "\n".join(
        json.dumps({"name": tool.name, "description": tool.description, "parameters": tool.schema}) for tool in tools
    )
    return (
        "\n\n# Tools\n\nYou call a tool by writing, on lines of their own:\n"
        '<tool_call>\n{"name": "…", "arguments": {…}}\n</tool_call>\n'
        "Several calls in one reply are allowed. Then stop: the results come with the next message.\n"
        f"These are the tools, one a line:\n{described}"
    )
