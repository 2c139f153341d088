"""As much of JSON Schema as the stored schemas use. An unknown keyword raises, so nothing passes unseen."""

from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
_KNOWN = set(
    "$comment $defs $ref additionalProperties anyOf enum items minimum minItems properties required type const".split()
)


def problems(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None, where: str = "$") -> list[str]:
    """What is wrong with a JSON value; nothing when it fits."""
    root = root or schema
    if unknown := set(schema) - _KNOWN:
        raise ValueError(f"keywords that this checker does not know: {unknown}")
    if "$ref" in schema:
        target: Any = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        return problems(value, target, root, where)
    found = _plain(value, schema, where)
    if "anyOf" in schema:
        tried = [problems(value, option, root, where) for option in schema["anyOf"]]
        found += [] if [] in tried else tried[0]
    if isinstance(value, dict) and not found:
        found += _object(value, schema, root, where)
    if isinstance(value, list) and "items" in schema:
        found += [p for i, v in enumerate(value) for p in problems(v, schema["items"], root, f"{where}[{i}]")]
    return found


def _plain(value: Any, schema: dict[str, Any], where: str) -> list[str]:
    kind = schema.get("type")
    if kind and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind in ("integer", "number"))):
        return [f"{where}: {value!r:.60} is no {kind}"]
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where}: {value!r:.60} is none of {schema['enum']}")
    if "const" in schema and value != schema["const"]:
        found.append(f"{where}: {value!r:.60} is not {schema['const']!r}")
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"{where}: {value} is less than {schema['minimum']}")
    if "minItems" in schema and len(value) < schema["minItems"]:
        found.append(f"{where}: fewer than {schema['minItems']} items")
    return found


def _object(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], where: str) -> list[str]:
    known = schema.get("properties", {})
    more = schema.get("additionalProperties", True)
    found = [f"{where}: {name} is missing" for name in schema.get("required", []) if name not in value]
    for name, inner in value.items():
        if name in known:
            found += problems(inner, known[name], root, f"{where}.{name}")
        elif more is False:
            found.append(f"{where}: {name} is not allowed")
        elif isinstance(more, dict):
            found += problems(inner, more, root, f"{where}.{name}")
    return found
