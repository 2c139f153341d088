"""The shape of the database, and events to rows and back, without a loss.

One row of `events` for each stored event, in order, and a typed row beside it. Rows are only ever added, never changed.
A column bears the name of the field that it holds; `<field>_ref` is the sha256 of that field's text in `texts`,
`<field>_json_ref` the same for a JSON value. `at` is Unix time in seconds (UTC). A column that is added needs a
`server_default` where it may not be NULL, and a new `VERSION` in `agent.record.schema`, so that databases without it
are converted. Reading, the strict decoder builds the event. Knows how to read from a connection, and opens none.
"""

import dataclasses
import hashlib
import json
import math
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, cast, get_args

from sqlalchemy import Boolean, CheckConstraint, Dialect, Float, ForeignKeyConstraint, Table, Text, UniqueConstraint
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

from kerneltune.agent.events import Event, Judged, Proposed, StoredEvent, Updated, Verified
from kerneltune.tools.schema.codec import DecodeError, Json, decode, encode
from kerneltune.tools.schema.verdict import CaseResult, Comparison, KernelReport, Timing, Verdict

TIMING_COLUMNS = ("median_us", "low_us", "high_us", "n_blocks", "n_launches")


class Words(TypeDecorator[str]):
    """Any Python string. One with lone surrogates (models and hostile processes write them) becomes a BLOB."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        """Text where UTF-8 can say it."""
        if value is None or value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogatepass")
        return value


class Real(Float[float]):
    """Any float. SQLite would turn NaN into NULL; the word 'nan' stays, and sorts above every number, as a failure."""

    def bind_processor(self, dialect: Dialect) -> Callable[[float | None], Any]:
        """A number, or 'nan'."""
        return lambda value: "nan" if value is not None and math.isnan(value) else value


class Document(TypeDecorator[Json]):
    """A small JSON value, as text; None is NULL."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Json, dialect: Dialect) -> str | None:
        """JSON in ASCII, keys in their order."""
        return None if value is None else json.dumps(value)


def table(model: type[SQLModel]) -> Table:
    """The SQLAlchemy table of a model."""
    return SQLModel.metadata.tables[str(model.__tablename__)]


def _text_ref(**options: Any) -> Any:
    return Field(foreign_key="texts.sha256", **options)


def _seq() -> Any:
    return Field(primary_key=True, foreign_key="events.seq")


class TextRow(SQLModel, table=True):
    """A long text, stored once: zlib-compressed UTF-8 under the sha256 of the uncompressed bytes."""

    __tablename__: ClassVar[str] = "texts"
    sha256: str = Field(primary_key=True)
    data: bytes


class EventRow(SQLModel, table=True):
    """The order of what happened. `digest` tells an event that is already stored."""

    __tablename__: ClassVar[str] = "events"
    __table_args__: ClassVar[Any] = (
        ForeignKeyConstraint(["run_id"], ["runs.run_id"], deferrable=True, initially="DEFERRED"),
    )
    seq: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(index=True)
    attempt_id: str | None = Field(default=None, index=True)
    kind: str
    at: float = Field(sa_type=Real)
    digest: str = Field(unique=True)


class RunRow(SQLModel, table=True):
    """RunStarted. No foreign key to `events`, which refers to this table."""

    __tablename__: ClassVar[str] = "runs"
    seq: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    run_id: str = Field(unique=True)
    task: str = Field(sa_type=Words)
    task_sha256: str = Field(sa_type=Words)
    task_source_ref: str = _text_ref()
    author: str = Field(sa_type=Words)
    author_why: str = Field(sa_type=Words)
    arch: str = Field(sa_type=Words)
    gpu: str | None = Field(sa_type=Words)
    machine: Json = Field(sa_type=Document)
    limits: Json = Field(sa_type=Document)
    seed: int
    versions: Json = Field(sa_type=Document)


class ResumptionRow(SQLModel, table=True):
    """RunResumed."""

    __tablename__: ClassVar[str] = "resumptions"
    seq: int = _seq()
    finished_attempts: int


class EndingRow(SQLModel, table=True):
    """RunEnded; a resumed run has several."""

    __tablename__: ClassVar[str] = "endings"
    seq: int = _seq()
    why: str = Field(sa_type=Words)
    attempts: int
    accepted: int
    best_attempt_id: str | None = Field(sa_type=Words)
    best_path: str | None = Field(sa_type=Words)
    elapsed_s: float = Field(sa_type=Real)


class WarningRow(SQLModel, table=True):
    """Warned."""

    __tablename__: ClassVar[str] = "warnings"
    seq: int = _seq()
    text: str = Field(sa_type=Words)


class MessageRow(SQLModel, table=True):
    """Said: one final message to a model."""

    __tablename__: ClassVar[str] = "messages"
    seq: int = _seq()
    role: str
    text_ref: str = _text_ref()
    usage: Json = Field(sa_type=Document, nullable=True)
    raw_json_ref: str | None = _text_ref(default=None)
    conversation: str = Field(default="", sa_type=Words, sa_column_kwargs={"server_default": ""})


class ReplyRow(SQLModel, table=True):
    """Replied: one reply of a model, with what it cost and the provider's own items."""

    __tablename__: ClassVar[str] = "replies"
    seq: int = _seq()
    conversation: str = Field(sa_type=Words)
    turn: int
    text_ref: str = _text_ref()
    thinking_ref: str = _text_ref()
    calls_json_ref: str = _text_ref()
    stop: str = Field(sa_type=Words)
    detail: str = Field(sa_type=Words)
    usage: Json = Field(sa_type=Document, nullable=True)
    cost_usd: float | None = Field(sa_type=Real)
    model: str = Field(sa_type=Words)
    seconds: float = Field(sa_type=Real)
    raw_json_ref: str | None = _text_ref(default=None)


class AttemptRow(SQLModel, table=True):
    """Proposed. A parent may be of another run."""

    __tablename__: ClassVar[str] = "attempts"
    __table_args__: ClassVar[Any] = (UniqueConstraint("run_id", "number"),)
    seq: int = _seq()
    attempt_id: str = Field(unique=True)
    run_id: str = Field(foreign_key="runs.run_id")
    number: int
    parent_id: str | None = Field(sa_type=Words)
    source_ref: str = _text_ref()
    rationale: str = Field(sa_type=Words)
    hypothesis: str = Field(sa_type=Words)
    prediction: str = Field(sa_type=Words)
    origin: Json = Field(sa_type=Document, nullable=True)


class UpdateRow(SQLModel, table=True):
    """Updated. Its failure, if any, is the row of `verdicts` with the same seq."""

    __tablename__: ClassVar[str] = "updates"
    seq: int = _seq()
    attempt_id: str = Field(unique=True, foreign_key="attempts.attempt_id")
    plan_json_ref: str | None = _text_ref(default=None)
    plan_sha256: str | None = Field(sa_type=Words)
    library_ops: Json = Field(sa_type=Document)
    variants: int
    trace_s: float = Field(sa_type=Real)
    compile_s: float = Field(sa_type=Real)


class KernelRow(SQLModel, table=True):
    """The compiler's report on one kernel of an update."""

    __tablename__: ClassVar[str] = "kernels"
    seq: int = Field(primary_key=True, foreign_key="updates.seq")
    position: int = Field(primary_key=True)
    name: str = Field(sa_type=Words)
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int
    num_warps: int
    num_stages: int
    occupancy: float = Field(sa_type=Real)
    cubin_sha256: str = Field(sa_type=Words)
    compile_s: float = Field(sa_type=Real)


def _timing_belongs_to_correct() -> list[CheckConstraint]:
    filled = [f"({c} IS NOT NULL) = (status = 'correct')" for c in TIMING_COLUMNS]
    share = "sol_fraction IS NULL OR status = 'correct'"
    return [
        CheckConstraint(" AND ".join(filled), name="only_correct_has_timing"),
        CheckConstraint(share, name="only_correct_has_sol_fraction"),
    ]


class VerdictRow(SQLModel, table=True):
    """Judged (`tool` = 'bench'), the failure of an Updated ('update'), or a Verified ('confirm', 'verify'), of which an
    attempt may have several. `bench_s` and `rank_key` are not of an update, `best` is of Judged alone."""

    __tablename__: ClassVar[str] = "verdicts"
    __table_args__: ClassVar[Any] = (
        UniqueConstraint("seq", "status"),
        *_timing_belongs_to_correct(),
    )
    seq: int = _seq()
    attempt_id: str = Field(foreign_key="attempts.attempt_id", index=True)
    tool: str
    status: str
    detail: str = Field(sa_type=Words)
    median_us: float | None = Field(sa_type=Real)
    low_us: float | None = Field(sa_type=Real)
    high_us: float | None = Field(sa_type=Real)
    n_blocks: int | None
    n_launches: int | None
    coverage: float | None = Field(sa_type=Real)
    sol_fraction: float | None = Field(sa_type=Real)
    variant: str = Field(sa_type=Words)
    tier: str | None
    facts: Json = Field(sa_type=Document, nullable=True)  # further fields of a verdict that has some
    receipt_json_ref: str = _text_ref()
    bench_s: float | None = Field(sa_type=Real)
    best: bool | None
    rank_key: Json = Field(sa_type=Document, nullable=True)


class VerificationRow(SQLModel, table=True):
    """Verified; its verdict is the row of `verdicts` with the same seq."""

    __tablename__: ClassVar[str] = "verifications"
    seq: int = _seq()
    attempt_id: str = Field(foreign_key="attempts.attempt_id", index=True)
    purpose: str
    held: bool
    why: str = Field(sa_type=Words)
    gpu: str | None = Field(sa_type=Words)
    machine: Json = Field(sa_type=Document)
    versions: Json = Field(sa_type=Document)


class CaseRow(SQLModel, table=True):
    """One comparison of a verdict with the float64 reference ("case" needs its quotes in SQL)."""

    __tablename__: ClassVar[str] = "cases"
    seq: int = Field(primary_key=True, foreign_key="verdicts.seq")
    position: int = Field(primary_key=True)
    case: str = Field(sa_type=Words)
    inputs: str = Field(sa_type=Words)
    ok: bool
    error_ratio: float = Field(sa_type=Real)
    max_abs_error: float = Field(sa_type=Real)
    detail: str = Field(sa_type=Words)
    limitations: Json = Field(sa_type=Document, nullable=True)


class ComparisonRow(SQLModel, table=True):
    """A paired time against one baseline. `status` is there so that the database can refuse it to any other verdict."""

    __tablename__: ClassVar[str] = "comparisons"
    __table_args__: ClassVar[Any] = (
        ForeignKeyConstraint(["seq", "status"], ["verdicts.seq", "verdicts.status"]),
        CheckConstraint("status = 'correct'", name="only_correct_is_compared"),
    )
    seq: int = Field(primary_key=True)
    position: int = Field(primary_key=True)
    status: str
    baseline: str = Field(sa_type=Words)
    baseline_us: float = Field(sa_type=Real)
    speedup: float = Field(sa_type=Real)
    low: float = Field(sa_type=Real)
    high: float = Field(sa_type=Real)


class ReflectionRow(SQLModel, table=True):
    """Reflected; an attempt may have several (open first, confirmed or refuted later)."""

    __tablename__: ClassVar[str] = "reflections"
    seq: int = _seq()
    attempt_id: str = Field(foreign_key="attempts.attempt_id", index=True)
    hypothesis: str = Field(sa_type=Words)
    prediction: str = Field(sa_type=Words)
    evidence: Json = Field(sa_type=Document)
    outcome: str


# Rows -----------------------------------------------------------------------------------------------------------------

Values = dict[str, Any]
Detail = tuple[type[SQLModel], list[Values]]
MOST_BYTES = 4 << 30  # of the texts of one reading: a few MiB of a foreign file may claim to be any size
_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(StoredEvent)}
_MODELS: dict[str, type[SQLModel]] = {
    "run_started": RunRow,
    "run_resumed": ResumptionRow,
    "run_ended": EndingRow,
    "warned": WarningRow,
    "said": MessageRow,
    "replied": ReplyRow,
    "proposed": AttemptRow,
    "updated": UpdateRow,
    "judged": VerdictRow,
    "verified": VerificationRow,
    "reflected": ReflectionRow,
}
_FACTS = (
    "case",
    "cause",
    "kernel",
    "lines",
    "ptx_lines",
    "needed_shared_bytes",
    "left_out",
    "not_timed",
    "pending",
)  # of a verdict, in one column
Column = tuple[type[SQLModel], str]
# What a trajectory has no use for, and what stands there instead: more than half of what there is to unpack.
_DOCUMENTS: Mapping[Column, Json] = {
    (UpdateRow, "plan_json_ref"): None,
    (VerdictRow, "receipt_json_ref"): {},
    (ReplyRow, "raw_json_ref"): None,
}
DETAILS: tuple[type[SQLModel], ...] = (*_MODELS.values(), KernelRow, CaseRow, ComparisonRow)


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
    if event.kind not in _MODELS:
        raise ValueError(f"{event.kind} is not stored")
    match event:
        case Judged():
            beside: Values = {"bench_s": event.bench_s, "best": event.best, "rank_key": event.rank_key}
            yield from _of_verdict(event.attempt_id, "bench", event.verdict, texts, beside)
        case Proposed():
            yield AttemptRow, [_row(AttemptRow, event, texts, origin=encode(event.origin))]
        case _:
            yield _MODELS[event.kind], [_row(_MODELS[event.kind], event, texts)]
    if isinstance(event, Updated):
        yield KernelRow, [{"position": i} | vars(kernel) for i, kernel in enumerate(event.kernels)]
        if event.failure:
            yield from _of_verdict(event.attempt_id, "update", event.failure, texts, {})
    if isinstance(event, Verified):
        beside = {"bench_s": event.bench_s, "rank_key": event.rank_key}
        yield from _of_verdict(event.attempt_id, event.purpose, event.verdict, texts, beside)


def _row(model: type[SQLModel], source: object, texts: _Texts, **other: Any) -> Values:
    """The columns of a table from the fields of their names; `other`: those that are none. Raises AttributeError."""
    row: Values = {}
    for name, _ in _columns(model):
        if name in other:
            row[name] = other[name]
        elif name.endswith("_json_ref"):
            row[name] = texts.json(getattr(source, name.removesuffix("_json_ref")))
        elif name.endswith("_ref"):
            row[name] = texts.text(getattr(source, name.removesuffix("_ref")))
        elif name != "seq":
            row[name] = getattr(source, name)
    return row


def _of_verdict(
    attempt_id: str, tool: str, verdict: Verdict, texts: _Texts, beside: Mapping[str, Any]
) -> Iterator[Detail]:
    """A verdict, its cases and its comparisons; `beside`: the columns that only some tools' verdicts have."""
    timing = vars(verdict.timing) if verdict.timing else dict.fromkeys(TIMING_COLUMNS)
    other = {"attempt_id": attempt_id, "tool": tool, "bench_s": None, "best": None, "rank_key": None} | timing
    yield VerdictRow, [_row(VerdictRow, verdict, texts, **other | dict(beside), facts=_facts(verdict))]
    yield (
        CaseRow,
        [
            _row(CaseRow, case, texts, position=i, limitations=encode(case.limitations) or None)
            for i, case in enumerate(verdict.cases)
        ],
    )
    compared = enumerate(verdict.comparisons)
    yield ComparisonRow, [_row(ComparisonRow, c, texts, position=i, status=verdict.status) for i, c in compared]


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
    rows = _select(connection, EventRow, f"WHERE {where} ORDER BY seq", values)
    wanted = [model for model in DETAILS if cases or model is not CaseRow]
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
    return [(str(column.name), _loader(column.type)) for column in table(model).columns]


def _loader(kind: object) -> Callable[[Any], Any] | None:
    if isinstance(kind, Document):
        return json.loads
    if isinstance(kind, Real):
        return float
    if isinstance(kind, Boolean):
        return bool
    return _word if isinstance(kind, Words) else None


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
            facts |= {"kernels": self._list(KernelReport, KernelRow, seq), "failure": self._verdict(seq)}
        if kind == "verified":
            facts |= next(self._of(VerdictRow, seq), {})
        if kind in ("judged", "verified"):
            facts["verdict"] = self._verdict(seq)
        return cast(Event, decode(_KINDS[kind], _fields(_KINDS[kind], facts), f"event {seq}"))

    def _verdict(self, seq: int) -> Json:
        for facts in self._of(VerdictRow, seq):
            timing = None if facts["median_us"] is None else _fields(Timing, facts)
            cases = [case | {"limitations": case["limitations"] or []} for case in self._list(CaseResult, CaseRow, seq)]
            comparisons = self._list(Comparison, ComparisonRow, seq)
            parts = {"timing": timing, "cases": cases, "comparisons": comparisons}
            return _fields(Verdict, facts | parts | (facts["facts"] or {}))
        return None

    def _list(self, cls: type[Any], model: type[SQLModel], seq: int) -> list[Values]:
        return [_fields(cls, row) for row in sorted(self._of(model, seq), key=lambda row: int(row["position"]))]

    def _of(self, model: type[SQLModel], seq: int) -> Iterator[Values]:
        references = _references(model)
        for row in self._rows.get((model, seq), ()):
            texts = {name: self._text(model, column, row[column]) for column, name in references}
            yield row | texts if texts else row

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
