"""`raw`: everything that is stored of a run, one row an event, such that `read_event` gives the same events again.

The event is a column of kind `exact`: its text, because decoders of data sets round floats in the last digit.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, cast, get_args

from agent.export.base import Column, Format, Made
from agent.export.formats.jsons import marked_json, plain_json, said_plainly
from agent.record.events import Event
from tools.codec import DecodeError, Json, decode

_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(Event)}


class Raw(Format):
    """Knows no options."""

    name: ClassVar[str] = "raw"
    about: ClassVar[str] = "everything that is stored, event by event, without a loss"
    events: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        Column("run_id", "text", "id of the run"),
        Column("position", "int", "of the event in its run, from 0"),
        Column("kind", "text", "run_started, said, replied, proposed, updated, judged, reflected, …"),
        Column("at", "float", "Unix time in seconds"),
        Column("attempt_id", "text", "the attempt that it is about; null if none"),
        Column("conversation", "text", "the conversation that it belongs to; null if none"),
        Column("event", "exact", "the event with all its fields"),
        Column("marked", "bool", "`event` holds marks for what JSON cannot say, such as infinities"),
    )

    def rows_of_events(self, events: Iterable[Event]) -> Iterator[Made]:
        """One row an event. Raises ValueError for a key with lone surrogates."""
        for position, event in enumerate(events):
            value, marked = plain_json(event)
            yield Made(
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
