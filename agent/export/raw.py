"""`raw`: everything that is stored of a run, one row an event, such that `read_event` gives the same events again.

The event is a column of kind `exact`: its JSON text as Python writes it, with `Infinity` and `NaN`, integers of any
size and lone surrogates, because decoders of data sets round floats in the last digit and know none of these.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, cast, get_args

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
    )

    def rows_of_events(self, events: Iterable[Event]) -> Iterator[ExportRow]:
        """One row an event."""
        for position, event in enumerate(events):
            yield ExportRow(
                {
                    "run_id": said_plainly(event.run_id),
                    "position": position,
                    "kind": event.kind,
                    "at": event.at,
                    "attempt_id": said_plainly(getattr(event, "attempt_id", None) or "") or None,
                    "conversation": said_plainly(getattr(event, "conversation", "")) or None,
                    "event": json.loads(json.dumps(event, default=vars)),
                }
            )


def read_event(event: Json) -> Event:
    """The event of a row, its text already parsed by `json.loads`. Raises DecodeError."""
    kind = str(event.get("kind")) if isinstance(event, dict) else "none"
    if kind not in _KINDS:
        raise DecodeError(f"event {kind}: known kinds are {', '.join(_KINDS)}")
    return cast(Event, decode(_KINDS[kind], event, f"event {kind}"))


def said_plainly(text: str) -> str:
    """The text with lone surrogates, which no file can hold, spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()
