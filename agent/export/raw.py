"""`raw`: everything that is stored of a run, one row an event, such that `read_event` gives the same events again.

The event is a column of kind `exact`: its text, because decoders of data sets round floats in the last digit.
"""

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, cast, get_args

import orjson

from kerneltune.agent.events import Event
from kerneltune.agent.export.base import ExportRow, Feature, Format
from kerneltune.tools.schema.codec import DecodeError, Json, decode

_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(Event)}


class Raw(Format):
    """Knows no options."""

    name: ClassVar[str] = "raw"
    about: ClassVar[str] = "everything that is stored, event by event, without a loss"
    events: ClassVar[bool] = True
    columns: ClassVar[tuple[Feature, ...]] = (
        Feature("run_id", "text", "id of the run"),
        Feature("position", "int", "of the event in its run, from 0"),
        Feature("kind", "text", "run_started, said, replied, proposed, updated, judged, reflected, …"),
        Feature("at", "float", "Unix time in seconds"),
        Feature("attempt_id", "text", "the attempt that it is about; null if none"),
        Feature("conversation", "text", "the conversation that it belongs to; null if none"),
        Feature("event", "exact", "the event with all its fields"),
        Feature("marked", "bool", "`event` holds marks for what JSON cannot say, such as infinities"),
    )

    def rows_of_events(self, events: Iterable[Event]) -> Iterator[ExportRow]:
        """One row an event. Raises ValueError for a key with lone surrogates."""
        for position, event in enumerate(events):
            value, marked = plain_json(event)
            yield ExportRow(
                {
                    "run_id": said_plainly(event.run_id),
                    "position": position,
                    "kind": event.kind,
                    "at": event.at,
                    "attempt_id": said_plainly(getattr(event, "attempt_id", None) or "") or None,
                    "conversation": said_plainly(getattr(event, "conversation", "")) or None,
                    "event": value,
                    "marked": marked,
                }
            )


def read_event(event: Json, marked: bool) -> Event:
    """The event of a row, its `event` already parsed by an exact parser. Raises DecodeError."""
    value = marked_json(event) if marked else event
    kind = str(value.get("kind")) if isinstance(value, dict) else "none"
    if kind not in _KINDS:
        raise DecodeError(f"event {kind}: known kinds are {', '.join(_KINDS)}")
    return cast(Event, decode(_KINDS[kind], value, f"event {kind}"))


# Events as strict JSON that comes back exactly ----------------------------------------------------------------------

_FLOAT, _INT, _TEXT, _ESCAPED = "$float", "$int", "$text", "$escaped"
_MARKS = (_FLOAT, _INT, _TEXT, _ESCAPED)
_INT_LIMITS = range(-(2**63), 2**64)  # what every JSON reader here takes


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
