"""Tool calls as models write them: JSON arguments, calls within text, and calls as plain text with a source.

Small models, and servers without a parser for them, leave calls in the text; only what names a known tool counts as
one there. Providers with free-text tools take a source file whose first comment lines carry the other arguments: a
kernel written so needs no escapes, which models get wrong and which cost tokens.
"""

import contextlib
import itertools
import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from kerneltune.agent.models.types import Message, Reply, Tool, ToolCall, ToolResult, ToolResults, User
from kerneltune.tools.schema.codec import Json

UNANSWERED = "This call was not run: the session was interrupted. Call again if it still makes sense."
CUT_OFF = "the reply reached its limit of tokens in the middle of this call: write less before it, or a shorter source"
SOURCE_SUFFIX = "_source"


# JSON arguments


def parse_call(call_id: str, name: str, text: str, *, cut_off: bool = False) -> ToolCall:
    """Return the call with the arguments of a model's JSON. `cut_off`: the reply ended at its limit of tokens."""
    if not text.strip() and not cut_off:
        return ToolCall(call_id, name)  # several servers write nothing for a call without arguments
    try:
        values = _loads(text)
    except (ValueError, RecursionError) as error:  # a ValueError, too, for a number of 5,000 digits
        return ToolCall(call_id, name, problem=CUT_OFF if cut_off else f"the arguments are not JSON: {error}")
    if isinstance(values, str):  # encoded twice
        with contextlib.suppress(ValueError, RecursionError):
            values = _loads(values)
    if not isinstance(values, dict):
        return ToolCall(call_id, name, problem=f"the arguments are a JSON {type(values).__name__}, not an object")
    return ToolCall(call_id, name, values)


def _loads(text: str) -> Json:
    """Return what strict JSON says, but for raw newlines in strings, which small models write. Python's own reader
    takes NaN and Infinity, which no API takes back."""
    return json.loads(text, strict=False, parse_constant=_no_number, parse_float=_finite)


def _no_number(text: str) -> Json:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def answered(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield `messages` such that ToolResults, one for each call in order, follow every reply with calls: all APIs
    insist.

    Calls without a result, as an interruption leaves them, get one that says so. Raises ValueError for a result
    without a call.
    """
    waiting: tuple[ToolCall, ...] = ()
    for message in messages:
        if waiting or isinstance(message, ToolResults):
            given = message if isinstance(message, ToolResults) else ToolResults(())
            yield _paired(waiting, given, message.text if isinstance(message, User) else given.text)
            waiting = ()
        elif isinstance(message, User):
            yield message
        if isinstance(message, Reply):
            yield message
            waiting = message.calls
    if waiting:
        yield _paired(waiting, ToolResults(()), "")


def _paired(calls: tuple[ToolCall, ...], given: ToolResults, text: str) -> ToolResults:
    known = {result.call_id: result for result in given.results}
    if stray := sorted(set(known) - {call.call_id for call in calls}):
        raise ValueError(f"results for calls that were not made: {stray}")
    results = (known.get(call.call_id, ToolResult(call.call_id, UNANSWERED, is_error=True)) for call in calls)
    return ToolResults(tuple(results), text)


def taken_ids(messages: Sequence[Message]) -> set[str]:
    """Return the ids of all calls of a conversation."""
    return {call.call_id for message in messages if isinstance(message, Reply) for call in message.calls}


def own_id(call_id: object, taken: set[str], otherwise: str) -> str:
    """Return an id that no other call has, and take it: `call_id` if there is one that is free. Local servers leave ids
    out or repeat them, and APIs refuse a conversation with one id for two calls."""
    options = itertools.chain([str(call_id or "")], (f"{otherwise}_{n}" for n in itertools.count()))
    found = next(option for option in options if option and option not in taken)
    taken.add(found)
    return found


def distinct(calls: Sequence[ToolCall], messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Return the calls that answer `messages` with ids of their own."""
    taken = taken_ids(messages)
    return tuple(replace(call, call_id=own_id(call.call_id, taken, f"call_{len(messages)}")) for call in calls)


# Calls within text

_THINK = re.compile(r"\A\s*(?:<think>)?(.*?)</think>\s*", re.DOTALL)
_TAGGED = re.compile(
    r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)|```(?:json|tool_call|tool_code)?[ \t]*\n(.*?)```"
    r"|\[TOOL_CALLS\]\s*(\[.*\])|<\|python_tag\|>\s*(\{.*\})",
    re.DOTALL,
)
_XML = re.compile(r"<function=([\w.-]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([\w.-]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


@dataclass(frozen=True)
class SplitText:
    """A text taken apart. The calls have no ids yet."""

    text: str
    thinking: str
    calls: tuple[ToolCall, ...]


def split_text(text: str, names: Collection[str]) -> SplitText:
    """Split a reply's text into thinking in <think> tags, calls of the tools `names`, and the rest."""
    thinking = ""
    if "</think>" in text and (thought := _THINK.match(text)):
        thinking, text = thought[1].strip(), text[thought.end() :]
    calls: list[ToolCall] = []

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
    return SplitText(rest.strip() if calls else text, thinking, tuple(calls))


def _calls(text: str, names: Collection[str]) -> list[ToolCall]:
    """Return the calls that `text` consists of, as one JSON value or one a line; none when it holds anything else."""
    if made := [call for found in _XML.finditer(text) for call in _xml_call(found, names)]:
        return made
    for values in ([text], text.strip().splitlines()):
        with contextlib.suppress(ValueError, RecursionError):
            return [call for value in values for call in _known(json.loads(value, strict=False), names)]
    return []


def _known(values: Json, names: Collection[str]) -> list[ToolCall]:
    listed = values if isinstance(values, list) else [values]
    made = [_one(value) for value in listed if isinstance(value, dict)]
    return [call for call in made if call.name in names]


def _one(value: dict[str, Json]) -> ToolCall:
    inner = value.get("function")
    if isinstance(inner, dict):
        value = inner
    name = value.get("name") or value.get("tool") or value.get("function") or ""
    given: Json = next((value[key] for key in ("arguments", "parameters", "input", "args") if key in value), {})
    return parse_call("", str(name), given if isinstance(given, str) else json.dumps(given))


def _xml_call(found: re.Match[str], names: Collection[str]) -> list[ToolCall]:
    """<function=name><parameter=key>value</parameter></function>, or JSON within <function=name>."""
    if found[1] not in names:
        return []
    if parameters := _PARAMETER.findall(found[2]):
        return [ToolCall("", found[1], {key: _parameter(text) for key, text in parameters})]
    return [parse_call("", found[1], found[2])]


def _parameter(text: str) -> Json:
    """Return numbers, lists and null as JSON; all else is text, source code above all."""
    try:
        value = _loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, str) else value


def tools_in_words(tools: Sequence[Tool]) -> str:
    """Describe the tools to a model behind a server without tool support."""
    described = "\n".join(
        json.dumps({"name": tool.name, "description": tool.description, "parameters": tool.parameters})
        for tool in tools
    )
    return (
        "\n\n# Tools\n\nYou call a tool by writing, on lines of their own:\n"
        '<tool_call>\n{"name": "…", "arguments": {…}}\n</tool_call>\n'
        "Several calls in one reply are allowed. Then stop: the results come with the next message.\n"
        f"These are the tools, one a line:\n{described}"
    )


# Calls as plain text with a source

_NONE = {"", "none", "null", "-", "n/a"}
_FENCE = re.compile(r"\A\s*```[\w+-]*[ \t]*\r?\n(.*?)\r?\n?```\s*\Z", re.DOTALL)
_FIELD = re.compile(r"^\s*#\s*([A-Za-z_]\w*)\s*:(.*)$")
_SIMPLE = {"string", "integer", "number", "boolean"}


def source_tool_name(tool: Tool) -> str:
    """Return what the free-text form of `tool` is called."""
    return tool.name + SOURCE_SUFFIX


def source_tool_description(tool: Tool) -> str:
    """Describe the free-text form of `tool` to the model."""
    lines = [f"# {field}: {_hint(schema)}" for field, schema in _comment_fields(tool).items()]
    return (
        f"{tool.description}\n\nThis form takes the whole source as plain text, not JSON and not fenced: "
        f"nothing is escaped. Begin with these comment lines, then the source:\n"
        + "\n".join(lines)
        + f"\nLines that do not apply can be left out. For everything else call `{tool.name}`."
    )


def _comment_fields(tool: Tool) -> dict[str, dict[str, Json]]:
    """Return the properties that a comment line can carry."""
    properties: dict[str, dict[str, Json]] = tool.schema.get("properties", {})
    return {key: schema for key, schema in properties.items() if key != tool.source and _types(schema) & _SIMPLE}


def _types(schema: dict[str, Json]) -> set[str]:
    """Return the JSON types that `schema` lets through."""
    if "anyOf" in schema:
        return set().union(*(_types(option) for option in schema["anyOf"]))
    kind = schema.get("type")
    if kind is None and "enum" in schema:
        return {"string"}
    return set(kind) if isinstance(kind, list) else {str(kind)}


def _hint(schema: dict[str, Json]) -> str:
    words = str(schema.get("description", "")) or "/".join(sorted(_types(schema) - {"null"}))
    return f"<{' '.join(words.split())}>"


def parse_source_call(tool: Tool, text: str) -> dict[str, Json]:
    """Return the arguments of `tool` out of a free-text call. Nullable properties that are not there are None; others
    are left out, for whoever checks the arguments to name."""
    if fenced := _FENCE.match(text):
        text = fenced[1]
    properties: dict[str, dict[str, Json]] = tool.schema.get("properties", {})
    found, source = _split_comment(text, _comment_fields(tool))
    values: dict[str, Json] = {str(tool.source): source}
    for key, schema in properties.items():
        if key in found:
            values[key] = _typed(found[key], _types(schema))
        elif key not in values and "null" in _types(schema):
            values[key] = None
    return values


def write_source_call(tool: Tool, values: dict[str, Json]) -> str:
    """Return arguments as the text that `parse_source_call` reads."""
    fields = [f"# {key}: {values[key]}" for key in _comment_fields(tool) if values.get(key) is not None]
    return "\n".join([*fields, str(values.get(str(tool.source)) or "")])


def _split_comment(text: str, fields: dict[str, dict[str, Json]]) -> tuple[dict[str, str], str]:
    """Return the fields of the leading comment, and the source without their lines."""
    known = {key.lower(): key for key in fields}
    lines = text.splitlines(keepends=True)
    found: dict[str, str] = {}
    kept: list[str] = []
    last = ""  # the field that an indented comment line goes on with
    for number, line in enumerate(lines):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            return found, "".join(kept).lstrip("\r\n") + "".join(lines[number:])
        field = _FIELD.match(line)
        if field and (key := known.get(field[1].lower())) and key not in found:
            found[key], last = field[2].strip(), key
        elif last and re.match(r"^\s*#\s{2,}\S", line):
            found[last] += " " + stripped.lstrip("# \t")
        else:
            kept.append(line)
            last = ""
    return found, "".join(kept).lstrip("\r\n")


def _typed(text: str, types: set[str]) -> Json:
    """Return `text` as the type that is wanted, or as it is, for whoever checks the arguments to name."""
    if "null" in types and text.lower() in _NONE:
        return None
    if "string" in types:
        return text
    try:
        return _loads(text.lower().lstrip("#")) if types & {"integer", "number", "boolean"} else text
    except (ValueError, RecursionError):
        return text
