"""A tool call as plain text: a source file whose first comment lines carry the other arguments.

For providers whose models can call a tool with free text. A kernel written so needs no escapes, which models get wrong
and which cost tokens.
"""

import json
import re

from agent.llm.dialogue import Tool
from tools.codec import Json

SUFFIX = "_source"
_NONE = {"", "none", "null", "-", "n/a"}
_FENCE = re.compile(r"\A\s*```[\w+-]*[ \t]*\r?\n(.*?)\r?\n?```\s*\Z", re.DOTALL)
_FIELD = re.compile(r"^\s*#\s*([A-Za-z_]\w*)\s*:(.*)$")


def name(tool: Tool) -> str:
    """What the free-text form of `tool` is called."""
    return tool.name + SUFFIX


def description(tool: Tool) -> str:
    """How the model learns the format."""
    lines = [f"# {field}: {_hint(schema)}" for field, schema in _fields(tool).items()]
    return (
        f"{tool.description}\n\nThis form takes the whole source as plain text, not JSON and not fenced: "
        f"nothing is escaped. Begin with these comment lines, then the source:\n"
        + "\n".join(lines)
        + f"\nLines that do not apply can be left out. For everything else call `{tool.name}`."
    )


def _fields(tool: Tool) -> dict[str, dict[str, Json]]:
    """The properties that a comment line can carry."""
    properties: dict[str, dict[str, Json]] = tool.schema.get("properties", {})
    return {key: schema for key, schema in properties.items() if key != tool.source and _kinds(schema) & _SIMPLE}


_SIMPLE = {"string", "integer", "number", "boolean"}


def _kinds(schema: dict[str, Json]) -> set[str]:
    """The JSON types that `schema` lets through."""
    if "anyOf" in schema:
        return set().union(*(_kinds(option) for option in schema["anyOf"]))
    kind = schema.get("type")
    if kind is None and "enum" in schema:
        return {"string"}
    return set(kind) if isinstance(kind, list) else {str(kind)}


def _hint(schema: dict[str, Json]) -> str:
    words = str(schema.get("description", "")) or "/".join(sorted(_kinds(schema) - {"null"}))
    return f"<{' '.join(words.split())}>"


def parse(tool: Tool, text: str) -> dict[str, Json]:
    """Arguments of `tool` out of a free-text call. Nullable properties that are not there are None; others are left
    out, for whoever checks the arguments to name."""
    if fenced := _FENCE.match(text):
        text = fenced[1]
    properties: dict[str, dict[str, Json]] = tool.schema.get("properties", {})
    found, source = _split(text, _fields(tool))
    values: dict[str, Json] = {str(tool.source): source}
    for key, schema in properties.items():
        if key in found:
            values[key] = _value(found[key], _kinds(schema))
        elif key not in values and "null" in _kinds(schema):
            values[key] = None
    return values


def write(tool: Tool, values: dict[str, Json]) -> str:
    """Arguments as the text that `parse` reads."""
    fields = [f"# {key}: {values[key]}" for key in _fields(tool) if values.get(key) is not None]
    return "\n".join([*fields, str(values.get(str(tool.source)) or "")])


def _split(text: str, fields: dict[str, dict[str, Json]]) -> tuple[dict[str, str], str]:
    """The fields of the leading comment, and the source without their lines."""
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


def _value(text: str, kinds: set[str]) -> Json:
    """`text` as the type that is wanted, or as it is, for whoever checks the arguments to name."""
    if "null" in kinds and text.lower() in _NONE:
        return None
    if "string" in kinds:
        return text
    try:
        return json.loads(text.lower().lstrip("#")) if kinds & {"integer", "number", "boolean"} else text
    except (ValueError, RecursionError):
        return text
