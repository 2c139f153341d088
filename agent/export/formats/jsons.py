"""JSON in texts: arguments as strings, and events that come back exactly. Needs the extra `export`."""

import json
import math
from typing import Any

import orjson

from tools.codec import Json

_FLOAT, _INT, _TEXT, _ESCAPED = "$float", "$int", "$text", "$escaped"
_MARKS = (_FLOAT, _INT, _TEXT, _ESCAPED)
_INT_LIMITS = range(-(2**63), 2**64)  # what every JSON reader here takes


def json_text(value: Json) -> str:
    """JSON in one line; huge integers and lone surrogates as Python's own encoder writes them."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value)


def said_plainly(text: str) -> str:
    """The text with lone surrogates, which no file can hold, spelled out."""
    return text if _is_text(text) else text.encode("utf-8", "backslashreplace").decode()


def plain_json(value: Any) -> tuple[Json, bool]:
    """A dataclass or JSON value as strict JSON, and whether something in it had to be marked: infinities and NaN,
    integers beyond 64 bits, lone surrogates. `marked_json` takes it back."""
    try:
        json.dumps(value, default=vars, allow_nan=False, ensure_ascii=False)  # orjson makes null of an infinity
        return orjson.loads(orjson.dumps(value, default=vars)), False
    except (TypeError, ValueError):
        return _mark(json.loads(json.dumps(value, default=vars))), True


def _mark(value: Json) -> Json:
    if isinstance(value, dict):
        made = {_key(k): _mark(v) for k, v in value.items()}
        return {_ESCAPED: made} if len(made) == 1 and next(iter(made)) in _MARKS else made
    if isinstance(value, list):
        return [_mark(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(value)}
    if isinstance(value, int) and value not in _INT_LIMITS:
        return {_INT: str(value)}
    if isinstance(value, str) and not _is_text(value):
        return {_TEXT: json.dumps(value)}
    return value


def _key(key: str) -> str:
    if _is_text(key):
        return key
    raise ValueError(f"a key that is no text cannot be exported: {key!r}")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def marked_json(value: Json) -> Json:
    """What `plain_json` marked, as it was."""
    if isinstance(value, list):
        return [marked_json(v) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (mark, inner), *_ = value.items()
        if mark in _MARKS:
            return _unmarked(mark, inner)
    return {k: marked_json(v) for k, v in value.items()}


def _unmarked(mark: str, inner: Json) -> Json:
    if mark == _ESCAPED:
        return {k: marked_json(v) for k, v in inner.items()}
    if mark == _TEXT:
        return json.loads(inner)
    return float(inner) if mark == _FLOAT else int(inner)
