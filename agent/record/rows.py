"""Events to rows and back, without a loss. Pure: knows the tables, but no connection.

A column takes the field of the same name; `<field>_ref` and `<field>_json_ref` take the address of the field's text.
"""

import dataclasses
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast, get_args

from sqlmodel import SQLModel

from agent.record import tables as t
from agent.record.events import Event, Judged, Progress, Said, Updated, Verified
from tools.codec import DecodeError, Json, decode
from tools.verdict import CaseResult, Comparison, KernelReport, Timing, Verdict

Values = dict[str, Any]
Details = Mapping[str, Sequence[Mapping[str, Any]]]
_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(Event)}
_MODELS: dict[str, type[SQLModel]] = {
    "run_started": t.RunRow,
    "run_resumed": t.ResumptionRow,
    "run_ended": t.EndingRow,
    "warned": t.WarningRow,
    "said": t.MessageRow,
    "replied": t.ReplyRow,
    "proposed": t.AttemptRow,
    "updated": t.UpdateRow,
    "judged": t.VerdictRow,
    "verified": t.VerificationRow,
    "reflected": t.ReflectionRow,
}
DETAILS: tuple[type[SQLModel], ...] = (*_MODELS.values(), t.KernelRow, t.CaseRow, t.ComparisonRow)


@dataclasses.dataclass(frozen=True)
class Rows:
    """What one event is in the database: its texts by address, and its rows in the order of insertion, without seq."""

    event: Values
    texts: dict[str, bytes]
    details: list[tuple[type[SQLModel], list[Values]]]

    @property
    def name(self) -> str:
        """What the event is about, for a message."""
        return str(self.event["attempt_id"] or f"run {self.event['run_id']}")


def is_stored(event: Event) -> bool:
    """Progress and the pieces of a streamed message are shown, not stored."""
    return not isinstance(event, Progress) and (not isinstance(event, Said) or event.final)


def to_rows(event: Event) -> Rows:
    """The rows of a stored event."""
    texts: dict[str, bytes] = {}
    details = [
        (model, [_values(model, {"position": i} | f, texts) for i, f in enumerate(facts)])
        for model, facts in _details(event)
        if facts
    ]
    return Rows(_event_values(event), texts, details)


def _event_values(event: Event) -> Values:
    canonical = json.dumps(event, default=vars, sort_keys=True)
    return {
        "run_id": event.run_id,
        "attempt_id": getattr(event, "attempt_id", None),
        "kind": event.kind,
        "at": event.at,
        "digest": hashlib.sha256(canonical.encode()).hexdigest(),
    }


def _details(event: Event) -> Iterator[tuple[type[SQLModel], list[Values]]]:
    match event:
        case Updated(failure=failure):
            yield t.UpdateRow, [vars(event)]
            yield t.KernelRow, [vars(k) for k in event.kernels]
            if failure:
                yield from _verdict(failure, {"attempt_id": event.attempt_id, "tool": "update"})
        case Judged():
            yield from _verdict(event.verdict, vars(event) | {"tool": "bench"})
        case Verified():
            yield t.VerificationRow, [vars(event)]
            yield from _verdict(event.verdict, vars(event) | {"tool": event.purpose})
        case _:
            yield _MODELS[event.kind], [vars(event)]


def _verdict(verdict: Verdict, facts: Values) -> Iterator[tuple[type[SQLModel], list[Values]]]:
    timing = vars(verdict.timing) if verdict.timing else {}
    yield t.VerdictRow, [vars(verdict) | timing | facts]
    yield t.CaseRow, [vars(c) for c in verdict.cases]
    yield t.ComparisonRow, [vars(c) | {"status": verdict.status} for c in verdict.comparisons]


def _values(model: type[SQLModel], facts: Values, texts: dict[str, bytes]) -> Values:
    return {c.name: _value(c.name, facts, texts) for c in t.table(model).columns if c.name != "seq"}


def _value(column: str, facts: Values, texts: dict[str, bytes]) -> Any:
    field = _field(column)
    value = facts.get(field)
    if field == column or value is None:
        return value
    text = json.dumps(value) if column.endswith("_json_ref") else value
    raw = text.encode("utf-8", "surrogatepass")
    sha256 = hashlib.sha256(raw).hexdigest()
    texts[sha256] = raw
    return sha256


def _field(column: str) -> str:
    return column.removesuffix("_ref").removesuffix("_json") if column.endswith("_ref") else column


def addresses(details: Details) -> set[str]:
    """The texts that these rows refer to."""
    rows = (row for table_rows in details.values() for row in table_rows)
    return {value for row in rows for column, value in row.items() if column.endswith("_ref") and value}


class Reader:
    """Puts stored rows together again: `details` are the rows beside some events, by table, and `texts` their texts."""

    def __init__(self, details: Details, texts: Mapping[str, bytes]) -> None:
        self._texts = texts
        self._rows: dict[tuple[str, int], list[Values]] = defaultdict(list)
        for name, rows in details.items():
            for row in rows:
                self._rows[name, row["seq"]].append(dict(row))

    def event(self, row: Mapping[str, Any]) -> Event:
        """The event of one row of `events`, equal to the one that was written."""
        seq, kind = row["seq"], row["kind"]
        facts: Values = dict(row)
        for detail in self._of(_MODELS[kind], seq):
            facts |= detail
        if kind == "updated":
            facts |= {"kernels": self._list(KernelReport, t.KernelRow, seq), "failure": self._verdict(seq)}
        if kind == "verified":
            facts |= next(self._of(t.VerdictRow, seq))
        if kind in ("judged", "verified"):
            facts["verdict"] = self._verdict(seq)
        return cast(Event, decode(_KINDS[kind], _restrict(_KINDS[kind], facts), f"event {seq}"))

    def _verdict(self, seq: int) -> Json:
        for facts in self._of(t.VerdictRow, seq):
            timing = None if facts["median_us"] is None else _restrict(Timing, facts)
            cases = self._list(CaseResult, t.CaseRow, seq)
            comparisons = self._list(Comparison, t.ComparisonRow, seq)
            return _restrict(Verdict, facts | {"timing": timing, "cases": cases, "comparisons": comparisons})
        return None

    def _list(self, cls: type[Any], model: type[SQLModel], seq: int) -> list[Values]:
        return [_restrict(cls, row) for row in sorted(self._of(model, seq), key=lambda row: int(row["position"]))]

    def _of(self, model: type[SQLModel], seq: int) -> Iterator[Values]:
        for row in self._rows.get((str(model.__tablename__), seq), ()):
            facts = dict(row)
            for column in [name for name in row if name.endswith("_ref")]:
                facts[_field(column)] = self._load(column, facts.pop(column))
            yield facts

    def _load(self, column: str, value: Any) -> Any:
        if value is None:
            return None
        if value not in self._texts:
            raise DecodeError(f"{column}: a text is missing")
        text = self._texts[value].decode("utf-8", "surrogatepass")
        return json.loads(text) if column.endswith("_json_ref") else text


def _restrict(cls: type[Any], facts: Mapping[str, Any]) -> Values:
    """The fields of a class; one without a column has its default (a `final`, or a field newer than the row)."""
    return {f.name: facts[f.name] for f in dataclasses.fields(cls) if f.name in facts}
