"""Events to rows and back, without a loss.

Writing names every column beside the field that it takes. Reading goes the other way by name: a column gives the field
of its name, `<field>_ref` and `<field>_json_ref` the field's text and JSON value; the strict decoder builds the event.
"""

import dataclasses
import hashlib
import json
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast, get_args

from sqlalchemy import Boolean
from sqlmodel import SQLModel

from kerneltune.agent.events import (
    Event,
    Judged,
    Proposed,
    Reflected,
    Replied,
    RunEnded,
    RunResumed,
    RunStarted,
    Said,
    StoredEvent,
    Updated,
    Verified,
    Warned,
)
from kerneltune.agent.record import tables as t
from kerneltune.tools.schema.codec import DecodeError, Json, decode, encode
from kerneltune.tools.schema.verdict import CaseResult, Comparison, KernelReport, Timing, Verdict

Values = dict[str, Any]
Detail = tuple[type[SQLModel], list[Values]]
MOST_BYTES = 4 << 30  # of the texts of one reading: a few MiB of a foreign file may claim to be any size
_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(StoredEvent)}
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
_FACTS = (
    "case",
    "cause",
    "kernel",
    "lines",
    "ptx_lines",
    "needed_shared_bytes",
    "left_out",
)  # of a verdict, in one column
Column = tuple[type[SQLModel], str]
# What a trajectory has no use for, and what stands there instead: more than half of what there is to unpack.
_DOCUMENTS: Mapping[Column, Json] = {
    (t.UpdateRow, "plan_json_ref"): None,
    (t.VerdictRow, "receipt_json_ref"): {},
    (t.ReplyRow, "raw_json_ref"): None,
}
DETAILS: tuple[type[SQLModel], ...] = (*_MODELS.values(), t.KernelRow, t.CaseRow, t.ComparisonRow)


@dataclasses.dataclass(frozen=True)
class Rows:
    """What one event is in the database: its texts by address, and its rows in the order of insertion, without seq."""

    event: Values
    texts: dict[str, bytes]
    details: list[Detail]


def digest_of(event: Event) -> str:
    """The sha256 of all that an event says: the same event has the same digest on every machine."""
    canonical = json.dumps(event, default=vars, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def to_rows(event: Event) -> Rows:
    """The rows of a stored event."""
    texts = _Texts()
    details = [(model, values) for model, values in _details(event, texts) if values]
    about = {"run_id": event.run_id, "attempt_id": getattr(event, "attempt_id", None), "kind": event.kind}
    return Rows(about | {"at": event.at, "digest": digest_of(event)}, texts.found, details)


class _Texts:
    """Collects the long texts of an event; each is replaced by its address."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}

    def text(self, text: str) -> str:
        """The address of a text."""
        raw = text.encode("utf-8", "surrogatepass")
        sha256 = hashlib.sha256(raw).hexdigest()
        self.found[sha256] = raw
        return sha256

    def json(self, value: Json) -> str | None:
        """The address of a JSON value; None has none."""
        return None if value is None else self.text(json.dumps(value))


def _details(event: Event, texts: _Texts) -> Iterator[Detail]:
    match event:
        case RunStarted() | RunResumed() | RunEnded() | Warned():
            yield _of_run(event, texts)
        case Said() | Replied():
            yield _of_conversation(event, texts)
        case Proposed() | Reflected():
            yield _of_attempt(event, texts)
        case Updated():
            yield from _of_update(event, texts)
        case Judged():
            beside: Values = {"bench_s": event.bench_s, "best": event.best, "rank_key": event.rank_key}
            yield from _of_verdict(event.attempt_id, "bench", event.verdict, texts, beside)
        case Verified():
            yield from _of_verification(event, texts)
        case _:
            raise ValueError(f"{event.kind} is not stored")


def _of_run(event: RunStarted | RunResumed | RunEnded | Warned, texts: _Texts) -> Detail:
    match event:
        case RunStarted():
            about: Values = {
                "run_id": event.run_id,
                "task": event.task,
                "task_sha256": event.task_sha256,
                "task_source_ref": texts.text(event.task_source),
                "author": event.author,
                "author_why": event.author_why,
                "arch": event.arch,
                "gpu": event.gpu,
                "machine": event.machine,
                "limits": event.limits,
                "seed": event.seed,
                "versions": event.versions,
            }
            return t.RunRow, [about]
        case RunResumed():
            return t.ResumptionRow, [{"finished_attempts": event.finished_attempts}]
        case Warned():
            return t.WarningRow, [{"text": event.text}]
        case RunEnded():
            counts = {"attempts": event.attempts, "accepted": event.accepted, "elapsed_s": event.elapsed_s}
            best = {"best_attempt_id": event.best_attempt_id, "best_path": event.best_path}
            return t.EndingRow, [{"why": event.why, **counts, **best}]


def _of_conversation(event: Said | Replied, texts: _Texts) -> Detail:
    both: Values = {
        "conversation": event.conversation,
        "text_ref": texts.text(event.text),
        "usage": event.usage,
        "raw_json_ref": texts.json(event.raw),
    }
    if isinstance(event, Said):
        return t.MessageRow, [both | {"role": event.role}]
    reply: Values = {
        "turn": event.turn,
        "thinking_ref": texts.text(event.thinking),
        "calls_json_ref": texts.json(event.calls),
        "stop": event.stop,
        "detail": event.detail,
        "cost_usd": event.cost_usd,
        "model": event.model,
        "seconds": event.seconds,
    }
    return t.ReplyRow, [both | reply]


def _of_attempt(event: Proposed | Reflected, texts: _Texts) -> Detail:
    both: Values = {
        "attempt_id": event.attempt_id,
        "hypothesis": event.hypothesis,
        "prediction": event.prediction,
    }
    if isinstance(event, Reflected):
        return t.ReflectionRow, [both | {"evidence": event.evidence, "outcome": event.outcome}]
    proposal: Values = {
        "run_id": event.run_id,
        "number": event.number,
        "parent_id": event.parent_id,
        "source_ref": texts.text(event.source),
        "rationale": event.rationale,
        "origin": encode(event.origin),
    }
    return t.AttemptRow, [both | proposal]


def _of_update(event: Updated, texts: _Texts) -> Iterator[Detail]:
    about: Values = {
        "attempt_id": event.attempt_id,
        "plan_json_ref": texts.json(event.plan),
        "plan_sha256": event.plan_sha256,
        "library_ops": event.library_ops,
        "variants": event.variants,
        "trace_s": event.trace_s,
        "compile_s": event.compile_s,
    }
    yield t.UpdateRow, [about]
    yield t.KernelRow, [{"position": i} | vars(kernel) for i, kernel in enumerate(event.kernels)]
    if event.failure:
        yield from _of_verdict(event.attempt_id, "update", event.failure, texts, {})


def _of_verification(event: Verified, texts: _Texts) -> Iterator[Detail]:
    about: Values = {
        "attempt_id": event.attempt_id,
        "purpose": event.purpose,
        "held": event.held,
        "why": event.why,
        "gpu": event.gpu,
        "machine": event.machine,
        "versions": event.versions,
    }
    yield t.VerificationRow, [about]
    beside: Values = {"bench_s": event.bench_s, "rank_key": event.rank_key}
    yield from _of_verdict(event.attempt_id, event.purpose, event.verdict, texts, beside)


def _of_verdict(
    attempt_id: str, tool: str, verdict: Verdict, texts: _Texts, beside: Mapping[str, Any]
) -> Iterator[Detail]:
    """A verdict, its cases and its comparisons, whose fields are the columns of their tables; `beside`: the columns
    that only some tools' verdicts have."""
    about: Values = {
        "attempt_id": attempt_id,
        "tool": tool,
        "status": verdict.status,
        "detail": verdict.detail,
        "coverage": verdict.coverage,
        "sol_fraction": verdict.sol_fraction,
        "variant": verdict.variant,
        "tier": verdict.tier,
        "receipt_json_ref": texts.json(verdict.receipt),
        "facts": _facts(verdict),
    }
    timing = vars(verdict.timing) if verdict.timing else dict.fromkeys(t.TIMING_COLUMNS)
    yield t.VerdictRow, [about | timing | dict.fromkeys(("bench_s", "best", "rank_key")) | dict(beside)]
    yield (
        t.CaseRow,
        [
            {"position": i} | vars(case) | {"limitations": encode(case.limitations) or None}
            for i, case in enumerate(verdict.cases)
        ],
    )
    compared = enumerate(verdict.comparisons)
    yield t.ComparisonRow, [{"position": i, "status": verdict.status} | vars(c) for i, c in compared]


def _facts(verdict: Verdict) -> Json:
    """What a verdict says beside its columns; None for the many that say nothing more."""
    found = {name: value for name in _FACTS if (value := encode(getattr(verdict, name))) not in ("", [], None)}
    return found or None


# Reading ------------------------------------------------------------------------------------------------------------


def read_events(
    connection: sqlite3.Connection,
    where: str,
    values: Mapping[str, object],
    *,
    most_bytes: int = MOST_BYTES,
    cases: bool = True,
    documents: bool = True,
) -> list[tuple[int, Event]]:
    """The events of some rows of `events`, each with its number, in order, equal to those that were written. Their
    texts have at most `most_bytes` together. Verdicts have no cases unless `cases`; plans, receipts and providers' own
    items are left empty unless `documents`. Raises ValueError, zlib.error and sqlite3.Error for damage."""
    chosen = f"SELECT seq FROM events WHERE {where}"
    rows = _select(connection, t.EventRow, f"WHERE {where} ORDER BY seq", values)
    wanted = [model for model in DETAILS if cases or model is not t.CaseRow]
    details = {model: _select(connection, model, f"WHERE seq IN ({chosen})", values) for model in wanted}
    empty = {} if documents else _DOCUMENTS
    addresses = {
        row[column]
        for model, found in details.items()
        for column, _ in _references(model)
        if (model, column) not in empty
        for row in found
    }
    reader = _RowDecoder(details, read_texts(connection, addresses - {None}, most_bytes), empty)
    return [(row["seq"], reader.event(row)) for row in rows]


def _select(
    connection: sqlite3.Connection, model: type[SQLModel], rest: str, values: Mapping[str, object]
) -> list[Values]:
    columns = _columns(model)
    names = ", ".join(f'"{name}"' for name, _ in columns)
    found = connection.execute(f"SELECT {names} FROM {model.__tablename__} {rest}", values)
    keys = [name for name, _ in columns]
    rows: list[Values] = [dict(zip(keys, row, strict=True)) for row in found]
    for name, load in columns:
        if load is not None:
            for row in rows:
                if row[name] is not None:
                    row[name] = load(row[name])
    return rows


@cache
def _columns(model: type[SQLModel]) -> list[tuple[str, Callable[[Any], Any] | None]]:
    """Each column of a table with what turns a value of the driver into one of the column's type."""
    return [(str(column.name), _loader(column.type)) for column in t.table(model).columns]


def _loader(kind: object) -> Callable[[Any], Any] | None:
    if isinstance(kind, t.Document):
        return json.loads
    if isinstance(kind, t.Real):
        return float
    if isinstance(kind, Boolean):
        return bool
    return _word if isinstance(kind, t.Words) else None


def _word(value: Any) -> Any:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def read_texts(connection: sqlite3.Connection, wanted: Iterable[str], most_bytes: int = MOST_BYTES) -> dict[str, str]:
    """The texts at these addresses, as far as they are there."""
    found: dict[str, str] = {}
    addresses, room = sorted(set(wanted)), most_bytes
    for start in range(0, len(addresses), 500):  # SQLite limits the variables of a statement
        some = addresses[start : start + 500]
        marks = ", ".join("?" * len(some))
        for sha256, data in connection.execute(f"SELECT sha256, data FROM texts WHERE sha256 IN ({marks})", some):
            raw = inflated(data, room)
            room -= len(raw)
            found[sha256] = raw.decode("utf-8", "surrogatepass")
    return found


def inflated(data: bytes, most_bytes: int) -> bytes:
    """A stored text. Raises ValueError when it has more bytes than that, zlib.error when it is damaged."""
    unpack = zlib.decompressobj()
    raw = unpack.decompress(data, most_bytes + 1)
    if len(raw) > most_bytes:
        raise ValueError(f"the texts have more than {most_bytes:,} bytes")
    if not unpack.eof:
        raise zlib.error("a text is damaged")
    return raw


class _RowDecoder:
    """Puts stored rows together again: `details` are the rows beside some events, by table, and `texts` their texts."""

    def __init__(
        self, details: Mapping[type[SQLModel], Sequence[Values]], texts: Mapping[str, str], empty: Mapping[Column, Json]
    ) -> None:
        self._texts, self._empty = texts, empty
        self._rows: dict[tuple[type[SQLModel], int], list[Values]] = defaultdict(list)
        for model, rows in details.items():
            for row in rows:
                self._rows[model, row["seq"]].append(row)

    def event(self, row: Values) -> Event:
        """The event of one row of `events`."""
        seq, kind = row["seq"], row["kind"]
        if kind not in _MODELS:
            raise DecodeError(f"event {seq}: unknown kind {kind!r:.100}")
        facts: Values = dict(row)
        for detail in self._of(_MODELS[kind], seq):
            facts |= detail
        if kind == "updated":
            facts |= {"kernels": self._list(KernelReport, t.KernelRow, seq), "failure": self._verdict(seq)}
        if kind == "verified":
            facts |= next(self._of(t.VerdictRow, seq), {})
        if kind in ("judged", "verified"):
            facts["verdict"] = self._verdict(seq)
        return cast(Event, decode(_KINDS[kind], _fields(_KINDS[kind], facts), f"event {seq}"))

    def _verdict(self, seq: int) -> Json:
        for facts in self._of(t.VerdictRow, seq):
            timing = None if facts["median_us"] is None else _fields(Timing, facts)
            cases = [
                case | {"limitations": case["limitations"] or []} for case in self._list(CaseResult, t.CaseRow, seq)
            ]
            comparisons = self._list(Comparison, t.ComparisonRow, seq)
            parts = {"timing": timing, "cases": cases, "comparisons": comparisons}
            return _fields(Verdict, facts | parts | (facts["facts"] or {}))
        return None

    def _list(self, cls: type[Any], model: type[SQLModel], seq: int) -> list[Values]:
        return [_fields(cls, row) for row in sorted(self._of(model, seq), key=lambda row: int(row["position"]))]

    def _of(self, model: type[SQLModel], seq: int) -> Iterator[Values]:
        for row in self._rows.get((model, seq), ()):
            texts = {name: self._text(model, column, row[column]) for column, name in _references(model)}
            yield row | texts

    def _text(self, model: type[SQLModel], column: str, address: str | None) -> Json:
        if address is None or (model, column) in self._empty:
            return self._empty.get((model, column))
        if address not in self._texts:
            raise DecodeError(f"the text {str(address)[:16]} is missing")
        text = self._texts[address]
        return json.loads(text) if column.endswith("_json_ref") else text


@cache
def _references(model: type[SQLModel]) -> list[tuple[str, str]]:
    """The columns of a table that hold addresses, and the fields whose texts these are."""
    names = [name for name, _ in _columns(model) if name.endswith("_ref")]
    return [(name, name.removesuffix("_ref").removesuffix("_json")) for name in names]


@cache
def _names(cls: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def _fields(cls: Any, facts: Mapping[str, Any]) -> Values:
    """The fields of a class; `final`, which has no column, has its default."""
    return {name: facts[name] for name in _names(cls) if name in facts}
