"""The record, and the only module that opens it: its tables, events to rows and back without a loss, its version.

One row of `events` for each stored event, in order, and a typed row beside it. Rows are only ever added, never changed.
The columns of a table are the fields of the class that it holds, under their names; `<field>_ref` is the sha256 of that
field's text in `texts`, `<field>_json_ref` the same for a JSON value. `at` is Unix time in seconds (UTC). A field that
is added needs a new `VERSION`, so that databases without it are converted, and a `server_default` where it may not be
NULL. Reading, the strict decoder builds the event.

One short transaction per event. WAL lets readers go on while one process writes; several processes queue for up to
30 s. A commit is in the kernel's hands when `write` returns, so `kill -9` loses nothing that was written (a power cut
may lose the last moments).

The version is SQLite's `user_version`. An older database is converted whole: its tables are made anew as they are now,
and every column that both have is copied; a new column has its default. Before version 2 an attempt had `params`,
launch parameters and private keys in one object, which become its origin; before version 3 a verdict had no cause;
before version 4 nothing said that a run had come by a merge, before version 5 not which events of a run had, before
version 6 nothing of a reply's tokens, before version 7 not what speed-up an attempt predicted, before version 8 not
who else went on with a run.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import os
import shutil
import sqlite3
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType, new_class
from typing import Any, Literal, Self, Union, cast, get_args, get_origin, get_type_hints

from sqlalchemy import (
    URL,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Dialect,
    Engine,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
    create_engine,
    select,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.event import listen
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateTable, SchemaItem
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

from kerneltune.agent.attempt import Attempt, Earlier, GivenFile, Lesson, LlmTurn, Origin, RunStart, SearchPoint, best
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
    attempts_of,
    is_stored,
)
from kerneltune.agent.record import query
from kerneltune.agent.record.query import VERSION
from kerneltune.agent.record.trajectory import Trajectory, trajectory
from kerneltune.tools.sandbox.scratch import ScratchFolder
from kerneltune.tools.schema.codec import DecodeError, Json, decode, encode, inflated, parsed
from kerneltune.tools.schema.errors import StoreError
from kerneltune.tools.schema.verdict import CaseResult, Comparison, KernelReport, Timing, Verdict

FILE_NAME = "runs.db"
BUSY_TIMEOUT_MS = 30_000
WAY_OUT = "see that the disk and the file are in order, or give another runs directory"
_SAME_EVENTS = ("3", "4", "5", "6", "7")  # older versions whose events have the fields of today, but for these:
# no part of a digest where they are empty
_NEW_FIELDS = ("case_times", "token_ids", "logprobs", "predicted_speedup", "other_author")
_BEFORE_1 = "0004"  # in a table `alembic_version`: the last schema before the first release
_PAGE_EVENTS = 1000
_BATCH_ATTEMPTS = 500  # of the runs that are read together: memory stays flat, queries stay few
MOST_BYTES = 1 << 30  # of the texts of one reading
MOST_TEXT_BYTES = 1 << 28  # of one of them, unpacked; no message between processes is longer
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
    "case_times",
)


# The tables -----------------------------------------------------------------------------------------------------------


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


_OF_EVENTS = ("run_id", "kind", "at")  # columns of `events`, whatever the event


def _kind(hint: Any) -> tuple[type[Any], bool]:
    """The type of a column for a field, and whether it may be NULL."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    [of, *others] = [part for part in parts if part is not NoneType]
    plain = {bool: Boolean, int: Integer, float: Real}
    if others or not (of in plain or get_origin(of) is Literal or (isinstance(of, type) and issubclass(of, str))):
        return Document, NoneType in parts
    return plain.get(of, Words), NoneType in parts


def _table(
    name: str, cls: type[Any], *own: SchemaItem, without: Collection[str] = (), apart: Collection[str] = ()
) -> Table:
    """The table that holds a class: columns of its `own`, one for each other field, and constraints. `apart`: fields
    that are long, and lie in `texts`."""
    columns = [item for item in own if isinstance(item, Column)]
    left, hints = {*without, *_OF_EVENTS, *(column.name for column in columns)}, get_type_hints(cls)
    for field in (field for field in dataclasses.fields(cls) if field.name not in left):
        kind, optional = _kind(hints[field.name])
        may_be_null = optional or field.default is None
        if field.name in apart:
            ref = f"{field.name}_ref" if kind is Words else f"{field.name}_json_ref"
            columns.append(Column(ref, String, ForeignKey("texts.sha256"), nullable=may_be_null))
        else:
            columns.append(Column(field.name, kind, nullable=may_be_null))
    return _model(name, columns, [item for item in own if not isinstance(item, Column)])


def _model(name: str, columns: Sequence[Column[Any]], constraints: Sequence[SchemaItem] = ()) -> Table:
    """The table of a SQLModel class with these columns."""
    body = {column.name: Field(sa_column=column) for column in columns} | {
        "__module__": __name__,
        "__annotations__": dict.fromkeys([column.name for column in columns], Any),
        "__tablename__": name,
        "__table_args__": tuple(constraints),
    }
    new_class(f"{name.title()}Row", (SQLModel,), {"table": True}, lambda namespace: namespace.update(body))
    return SQLModel.metadata.tables[name]


def _seq() -> Column[Any]:
    return Column("seq", Integer, ForeignKey("events.seq"), primary_key=True)


def _attempt(**options: Any) -> Column[Any]:
    return Column("attempt_id", String, ForeignKey("attempts.attempt_id"), nullable=False, **options)


def _parts_of(table: str) -> tuple[Column[Any], Column[Any]]:
    return Column("seq", ForeignKey(f"{table}.seq"), primary_key=True), Column("position", Integer, primary_key=True)


# A long text, stored once: zlib-compressed UTF-8 under the sha256 of the uncompressed bytes.
TEXTS = _model("texts", [Column("sha256", String, primary_key=True), Column("data", LargeBinary, nullable=False)])
# The order of what happened. `digest` tells an event that is already stored. `merged_from`: the database that it came
# with, as a person named it; NULL for what happened in this record. It is no field of the event, whose digest all
# machines share.
EVENTS = _model(
    "events",
    [
        Column("seq", Integer, primary_key=True),
        Column("run_id", ForeignKey("runs.run_id", deferrable=True, initially="DEFERRED"), nullable=False, index=True),
        Column("attempt_id", String, index=True),
        Column("kind", String, nullable=False),
        Column("at", Real, nullable=False),
        Column("digest", String, nullable=False, unique=True),
        Column("merged_from", Words),
    ],
)
# No foreign key to `events`, which refers to this table.
RUNS = _table(
    "runs",
    RunStarted,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("run_id", String, nullable=False, unique=True),
    apart=["task_source"],
)
ATTEMPTS = _table(
    "attempts",
    Proposed,
    _seq(),
    Column("attempt_id", String, nullable=False, unique=True),
    Column("run_id", String, ForeignKey("runs.run_id"), nullable=False),
    UniqueConstraint("run_id", "number"),
    apart=["source"],
)
MESSAGES = _table(
    "messages",
    Said,
    _seq(),
    Column("conversation", Words, nullable=False, server_default=""),
    without=["attempt_id", "final"],
    apart=["text", "raw"],
)
REPLIES = _table("replies", Replied, _seq(), apart=["text", "thinking", "calls", "raw", "token_ids", "logprobs"])
# Its failure, if any, is the row of `verdicts` with the same seq.
UPDATES = _table("updates", Updated, _seq(), _attempt(unique=True), without=["kernels", "failure"], apart=["plan"])
KERNELS = _table("kernels", KernelReport, *_parts_of("updates"))
_TIMING = tuple(field.name for field in dataclasses.fields(Timing))
# Of Judged (`tool` = 'bench'), the failure of an Updated ('update'), or a Verified ('confirm', 'verify'), of which an
# attempt may have several. `bench_s` and `rank_key` are not of an update, `best` is of Judged alone; `facts`: further
# fields of a verdict that has some.
VERDICTS = _table(
    "verdicts",
    Verdict,
    _seq(),
    _attempt(index=True),
    Column("tool", String, nullable=False),
    Column("status", String, nullable=False),
    *(Column(name, _kind(hint)[0]) for name, hint in get_type_hints(Timing).items()),
    Column("facts", Document),
    Column("bench_s", Real),
    Column("best", Boolean),
    Column("rank_key", Document),
    UniqueConstraint("seq", "status"),
    CheckConstraint(
        " AND ".join(f"({name} IS NOT NULL) = (status = 'correct')" for name in _TIMING),
        name="only_correct_has_timing",
    ),
    CheckConstraint("sol_fraction IS NULL OR status = 'correct'", name="only_correct_has_sol_fraction"),
    without=["cases", "timing", "comparisons", *_FACTS],
    apart=["receipt"],
)
# Its verdict is the row of `verdicts` with the same seq.
VERIFICATIONS = _table(
    "verifications", Verified, _seq(), _attempt(index=True), without=["verdict", "bench_s", "rank_key"]
)
# "case" needs its quotes in SQL.
CASES = _table("cases", CaseResult, *_parts_of("verdicts"), Column("limitations", Document))
# `status` is there so that the database can refuse it to any other verdict.
COMPARISONS = _table(
    "comparisons",
    Comparison,
    Column("seq", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("status", String, nullable=False),
    ForeignKeyConstraint(["seq", "status"], ["verdicts.seq", "verdicts.status"]),
    CheckConstraint("status = 'correct'", name="only_correct_is_compared"),
)
_TABLE_OF: dict[str, Table] = {
    "run_started": RUNS,
    "run_resumed": _table(
        "resumptions", RunResumed, _seq(), Column("other_author", Words, nullable=False, server_default="")
    ),
    "run_ended": _table("endings", RunEnded, _seq()),
    "warned": _table("warnings", Warned, _seq()),
    "said": MESSAGES,
    "replied": REPLIES,
    "proposed": ATTEMPTS,
    "updated": UPDATES,
    "judged": VERDICTS,
    "verified": VERIFICATIONS,
    "reflected": _table("reflections", Reflected, _seq(), _attempt(index=True)),
}
DETAILS: tuple[Table, ...] = (*_TABLE_OF.values(), KERNELS, CASES, COMPARISONS)
# What a trajectory has no use for, and what stands there instead: more than half of what there is to unpack.
_DOCUMENTS: Mapping[tuple[str, str], Json] = {
    ("updates", "plan_json_ref"): None,
    ("verdicts", "receipt_json_ref"): {},
    ("replies", "raw_json_ref"): None,
}


# Events to rows -------------------------------------------------------------------------------------------------------

Values = dict[str, Any]
Detail = tuple[Table, list[Values]]
_KINDS: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(StoredEvent)}


@dataclasses.dataclass(frozen=True)
class Rows:
    """What one event is in the database: its texts by address, and its rows in the order of insertion, without seq."""

    event: Values
    texts: dict[str, bytes]
    details: list[Detail]


def digest_of(event: Event) -> str:
    """The sha256 of all that an event says: the same event has the same digest on every machine."""
    canonical = json.dumps(event, default=_told, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _told(part: object) -> dict[str, object]:
    return {name: value for name, value in vars(part).items() if value or name not in _NEW_FIELDS}


def to_rows(event: Event) -> Rows:
    """The rows of a stored event."""
    texts = _Texts()
    details = [(table, values) for table, values in _details(event, texts) if values]
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
        case Judged():
            beside: Values = {"bench_s": event.bench_s, "best": event.best, "rank_key": event.rank_key}
            yield from _of_verdict(event.attempt_id, "bench", event.verdict, texts, beside)
        case Proposed():
            yield ATTEMPTS, [_row(ATTEMPTS, event, texts, origin=encode(event.origin))]
        case _:
            yield _TABLE_OF[event.kind], [_row(_TABLE_OF[event.kind], event, texts)]
    if isinstance(event, Updated):
        yield KERNELS, [{"position": i} | vars(kernel) for i, kernel in enumerate(event.kernels)]
        if event.failure:
            yield from _of_verdict(event.attempt_id, "update", event.failure, texts, {})
    if isinstance(event, Verified):
        beside = {"bench_s": event.bench_s, "rank_key": event.rank_key}
        yield from _of_verdict(event.attempt_id, event.purpose, event.verdict, texts, beside)


def _row(table: Table, source: object, texts: _Texts, **other: Any) -> Values:
    """The columns of a table from the fields of their names; `other`: those that are none. Raises AttributeError."""
    row: Values = {}
    for name, _ in _columns(table):
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
    timing = vars(verdict.timing) if verdict.timing else dict.fromkeys(_TIMING)
    other = {"attempt_id": attempt_id, "tool": tool, "bench_s": None, "best": None, "rank_key": None} | timing
    yield VERDICTS, [_row(VERDICTS, verdict, texts, **other | dict(beside), facts=_facts(verdict))]
    yield (
        CASES,
        [
            _row(CASES, case, texts, position=i, limitations=encode(case.limitations) or None)
            for i, case in enumerate(verdict.cases)
        ],
    )
    compared = enumerate(verdict.comparisons)
    yield COMPARISONS, [_row(COMPARISONS, c, texts, position=i, status=verdict.status) for i, c in compared]


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
    items are left empty unless `documents`. Raises ValueError and sqlite3.Error for damage."""
    chosen = f"SELECT seq FROM events WHERE {where}"
    rows = _select(connection, EVENTS, f"WHERE {where} ORDER BY seq", values)
    wanted = [table for table in DETAILS if cases or table is not CASES]
    details = {table: _select(connection, table, f"WHERE seq IN ({chosen})", values) for table in wanted}
    empty = {} if documents else _DOCUMENTS
    addresses = {
        row[column]
        for table, found in details.items()
        for column, _ in _references(table)
        if (table.name, column) not in empty
        for row in found
    }
    reader = _RowDecoder(details, read_texts(connection, addresses - {None}, most_bytes), empty)
    return [(row["seq"], reader.event(row)) for row in rows]


def _select(connection: sqlite3.Connection, table: Table, rest: str, values: Mapping[str, object]) -> list[Values]:
    columns = _columns(table)
    names = ", ".join(f'"{name}"' for name, _ in columns)
    found = connection.execute(f"SELECT {names} FROM {table.name} {rest}", values)
    keys = [name for name, _ in columns]
    rows: list[Values] = [dict(zip(keys, row, strict=True)) for row in found]
    for name, load in columns:
        if load is not None:
            for row in rows:
                if row[name] is not None:
                    row[name] = load(row[name])
    return rows


@cache
def _columns(table: Table) -> list[tuple[str, Callable[[Any], Any] | None]]:
    """Each column of a table with what turns a value of the driver into one of the column's type."""
    return [(str(column.name), _loader(column.type)) for column in table.columns]


def _loader(kind: object) -> Callable[[Any], Any] | None:
    if isinstance(kind, Document):
        return parsed
    if isinstance(kind, Real):
        return float
    if isinstance(kind, Boolean):
        return bool
    return query.word if isinstance(kind, Words) else None


def read_texts(connection: sqlite3.Connection, wanted: Iterable[str], most_bytes: int = MOST_BYTES) -> dict[str, str]:
    """The texts at these addresses, as far as they are there. Raises ValueError when one is damaged, or they have more
    than `most_bytes`."""
    found: dict[str, str] = {}
    addresses, room = sorted(set(wanted)), most_bytes
    for start in range(0, len(addresses), 500):  # SQLite limits the variables of a statement
        some = addresses[start : start + 500]
        marks = ", ".join("?" * len(some))
        for sha256, data in connection.execute(f"SELECT sha256, data FROM texts WHERE sha256 IN ({marks})", some):
            raw = inflated(data, MOST_TEXT_BYTES)
            room -= len(raw)
            if room < 0:
                raise ValueError(f"the texts have more than {most_bytes:,} bytes together")
            found[sha256] = raw.decode("utf-8", "surrogatepass")
    return found


class _RowDecoder:
    """Puts stored rows together again: `details` are the rows beside some events, by table, and `texts` their texts."""

    def __init__(
        self, details: Mapping[Table, Sequence[Values]], texts: Mapping[str, str], empty: Mapping[tuple[str, str], Json]
    ) -> None:
        self._texts, self._empty = texts, empty
        self._rows: dict[tuple[Table, int], list[Values]] = defaultdict(list)
        for table, rows in details.items():
            for row in rows:
                self._rows[table, row["seq"]].append(row)

    def event(self, row: Values) -> Event:
        """The event of one row of `events`."""
        seq, kind = row["seq"], row["kind"]
        if kind not in _TABLE_OF:
            raise DecodeError(f"event {seq}: unknown kind {kind!r:.100}")
        facts: Values = dict(row)
        for detail in self._of(_TABLE_OF[kind], seq):
            facts |= detail
        if kind == "updated":
            facts |= {"kernels": self._list(KernelReport, KERNELS, seq), "failure": self._verdict(seq)}
        if kind == "verified":
            facts |= next(self._of(VERDICTS, seq), {})
        if kind in ("judged", "verified"):
            facts["verdict"] = self._verdict(seq)
        return cast(Event, decode(_KINDS[kind], _fields(_KINDS[kind], facts), f"event {seq}"))

    def _verdict(self, seq: int) -> Json:
        for facts in self._of(VERDICTS, seq):
            timing = None if facts["median_us"] is None else _fields(Timing, facts)
            cases = [case | {"limitations": case["limitations"] or []} for case in self._list(CaseResult, CASES, seq)]
            comparisons = self._list(Comparison, COMPARISONS, seq)
            parts = {"timing": timing, "cases": cases, "comparisons": comparisons}
            return _fields(Verdict, facts | parts | (facts["facts"] or {}))
        return None

    def _list(self, cls: type[Any], table: Table, seq: int) -> list[Values]:
        return [_fields(cls, row) for row in sorted(self._of(table, seq), key=lambda row: int(row["position"]))]

    def _of(self, table: Table, seq: int) -> Iterator[Values]:
        references = _references(table)
        for row in self._rows.get((table, seq), ()):
            texts = {name: self._text(table, column, row[column]) for column, name in references}
            yield row | texts if texts else row

    def _text(self, table: Table, column: str, address: str | None) -> Json:
        if address is None or (table.name, column) in self._empty:
            return self._empty.get((table.name, column))
        if address not in self._texts:
            raise DecodeError(f"the text {str(address)[:16]} is missing")
        text = self._texts[address]
        return parsed(text) if column.endswith("_json_ref") else text


@cache
def _references(table: Table) -> list[tuple[str, str]]:
    """The columns of a table that hold addresses, and the fields whose texts these are."""
    names = [name for name, _ in _columns(table) if name.endswith("_ref")]
    return [(name, name.removesuffix("_ref").removesuffix("_json")) for name in names]


@cache
def _names(cls: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def _fields(cls: Any, facts: Mapping[str, Any]) -> Values:
    """The fields of a class; `final`, which has no column, has its default."""
    return {name: facts[name] for name in _names(cls) if name in facts}


# The version ----------------------------------------------------------------------------------------------------------


def prepare(connection: sqlite3.Connection, path: Path, *, backup: bool = True) -> None:
    """Leave the database at `path`, or a copy of it, at our version, in WAL mode. The caller holds the lock of the runs
    directory, for two processes may find the same old or missing database. Raises StoreError."""
    found = version(connection, path)
    connection.execute("PRAGMA journal_mode = WAL").close()  # a property of the file: nothing to do when it has it
    if found is None:
        with transaction(connection):
            _create(connection)
    elif found != str(VERSION):
        if backup:
            _backup(connection, path.with_name(f"{path.name}.bak-{found}"))
        convert(connection, found)


def version(connection: sqlite3.Connection, path: Path) -> str | None:
    """The stored version, ours or one that can be converted; None for an empty database. Raises StoreError."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not names:
        return None
    if "alembic_version" in names:
        found = ", ".join(str(row[0]) for row in connection.execute("SELECT version_num FROM alembic_version"))
    else:
        found = str(connection.execute("PRAGMA user_version").fetchone()[0])
    if "events" not in names or found in ("", "0"):
        raise StoreError(f"{path} is an SQLite database, but not one of kerneltune's; give another runs directory")
    if found not in (_BEFORE_1, *map(str, range(1, VERSION + 1))):
        raise StoreError(
            f"{path} has schema {found}, newer than schema {VERSION} of this kerneltune; "
            "upgrade kerneltune, or give another runs directory"
        )
    return found


def convert(connection: sqlite3.Connection, found: str) -> None:
    """Bring a database of an older version to ours, in one transaction. Foreign keys are off meanwhile. An event's
    digest is that of all its fields, so it is made anew where there are more of them, and stays a check of what a
    foreign database says where there are not."""
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("PRAGMA legacy_alter_table = ON")  # a renamed table is not followed by those that refer to it
    try:
        with transaction(connection):
            _copy_tables(connection)
            if found not in _SAME_EVENTS:
                _renew_digests(connection)
            if broken := connection.execute("PRAGMA foreign_key_check").fetchone():
                raise StoreError(f"the conversion to schema {VERSION} breaks a reference: {broken}")
    finally:
        connection.execute("PRAGMA legacy_alter_table = OFF")
        connection.execute("PRAGMA foreign_keys = ON")


def _copy_tables(connection: sqlite3.Connection) -> None:
    merged: list[tuple[str, str]] = []  # runs, and what version 4 knows of whole runs alone
    stored = "SELECT name FROM sqlite_master WHERE type = ? AND sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
    for (name,) in connection.execute(stored, ("index",)).fetchall():
        connection.execute(f"DROP INDEX {_quoted(name)}")
    names = [name for (name,) in connection.execute(stored, ("table",))]
    for name in names:
        connection.execute(f"ALTER TABLE {_quoted(name)} RENAME TO {_quoted('old_' + name)}")
    _create(connection)
    for table in SQLModel.metadata.sorted_tables:
        if table.name in names:
            old = {row[1] for row in connection.execute(f"PRAGMA table_info({_quoted('old_' + table.name)})")}
            both = ", ".join(_quoted(column.name) for column in table.columns if column.name in old)
            connection.execute(f"INSERT INTO {table.name} ({both}) SELECT {both} FROM {_quoted('old_' + table.name)}")
            if table.name == "attempts" and "params" in old:
                found = connection.execute("SELECT params, seq FROM old_attempts").fetchall()
                origins = [(json.dumps(encode(origin_of(parsed(params)))), seq) for params, seq in found]
                connection.executemany("UPDATE attempts SET origin = nullif(?, 'null') WHERE seq = ?", origins)
            if table.name == "runs" and "merged_from" in old:
                came = "SELECT run_id, merged_from FROM old_runs WHERE merged_from IS NOT NULL"
                merged = connection.execute(came).fetchall()
    connection.executemany("UPDATE events SET merged_from = ?2 WHERE run_id = ?1", merged)
    for name in names:
        connection.execute(f"DROP TABLE {_quoted('old_' + name)}")


def origin_of(params: dict[str, Json]) -> Origin | None:
    """What the `params` of an attempt of version 1 say of its origin."""
    numbers = {name: value for name, value in params.items() if type(value) is int}
    match params:
        case {"conversation": str(key), "turn": int(turn)}:
            return LlmTurn(key, turn)
        case {"from": str(given)}:
            point = SearchPoint(str(params["sketch"]), numbers) if "sketch" in params else None
            return RunStart(given, "as" in params, point)
        case {"file": str(name)}:
            return GivenFile(name, str(params.get("problem", "")))
    return SearchPoint(str(params.get("sketch", "")), numbers) if params else None


def _renew_digests(connection: sqlite3.Connection) -> None:
    last = connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]
    for start in range(0, last, _PAGE_EVENTS):
        page = {"start": start, "end": start + _PAGE_EVENTS}
        found = read_events(connection, "seq > :start AND seq <= :end", page)
        renewed = [(digest_of(event), seq) for seq, event in found]
        connection.executemany("UPDATE events SET digest = ? WHERE seq = ?", renewed)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _create(connection: sqlite3.Connection) -> None:
    for table in SQLModel.metadata.sorted_tables:
        connection.execute(str(CreateTable(table).compile(dialect=sqlite.dialect())))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            connection.execute(str(CreateIndex(index).compile(dialect=sqlite.dialect())))
    connection.execute(f"PRAGMA user_version = {VERSION}")


def copied(path: Path, folder: Path) -> Path:
    """A copy of a database and of what a writer has not brought into it yet, in that folder."""
    for end in ("", "-wal"):
        if (part := Path(f"{path}{end}")).exists():
            shutil.copyfile(part, folder / f"{FILE_NAME}{end}")
    return folder / FILE_NAME


def _own(path: Path) -> None:
    """Make the file of a database, for this user alone: it will hold what was said to models."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _backup(connection: sqlite3.Connection, copy: Path) -> None:
    """A whole copy of the database: complete, or not there."""
    beside = copy.with_name(copy.name + ".part")
    beside.unlink(missing_ok=True)
    _own(beside)
    with contextlib.closing(sqlite3.connect(beside)) as target:
        connection.backup(target)
    beside.replace(copy)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction that writes, of a connection that begins none by itself."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


# The store ------------------------------------------------------------------------------------------------------------


class Contradiction(StoreError):
    """What was to be stored is at odds with what is: another run with this id, a reference to nothing."""


class Store:
    """The record of all runs of one runs directory. Safe to use from several threads; close it, or use `with`."""

    def __init__(self, engine: Engine, path: Path, held: contextlib.ExitStack) -> None:
        self.path = path
        self._engine, self._held = engine, held
        self._writer = engine.execution_options(begin="BEGIN IMMEDIATE")
        self._lock = threading.Lock()  # threads take turns here; SQLite's own wait sleeps between tries

    @classmethod
    def open(cls, runs_dir: Path, *, to_look: bool = False) -> Self:
        """Open the record in `runs_dir`, made or converted as needed; one that cannot be written, `to_look` at it, in a
        copy, since SQLite reads no WAL database where it may not write. Raises StoreError when that cannot be done."""
        path = runs_dir / FILE_NAME
        with _one_line(path, "opening"), contextlib.ExitStack() as held:
            if to_look and path.is_file() and not all(os.access(place, os.W_OK) for place in (runs_dir, path)):
                database = copied(path, held.enter_context(ScratchFolder()))
            else:
                runs_dir.mkdir(parents=True, exist_ok=True)
                database = path
            engine = _engine(database)
            held.callback(engine.dispose)
            with _locked(runs_dir) if database is path else contextlib.nullcontext():  # a copy is ours alone
                _own(database)
                with contextlib.closing(engine.raw_connection()) as connection:
                    prepare(_sqlite(connection.driver_connection), path, backup=database is path)
            return cls(engine, path, held.pop_all())

    def close(self) -> None:
        """Let go of the file."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, event: Event) -> None:
        """Store an event; nothing happens when it is stored already, or is of a kind that is only shown."""
        if not is_stored(event):
            return
        with self._lock, _one_line(self.path, f"{event.kind!r} of {_name(event)}"), self._writer.begin() as connection:
            _insert(connection, event)

    def write_all(self, events: Iterable[Event], merged_from: str | None = None) -> None:
        """Store events in one transaction: all of them or, when one contradicts what is stored or getting the next one
        fails, none. `merged_from`: the other database that they come with. Raises Contradiction and StoreError."""
        with self._lock, _one_line(self.path, "writing"), self._writer.begin() as connection:
            for event in events:
                _insert(connection, event, merged_from)

    def merged_from(self, run_id: str) -> str | None:
        """The database that a run came with; None for one that was begun in this record."""
        begun = "SELECT e.merged_from FROM runs AS r JOIN events AS e ON e.seq = r.seq WHERE r.run_id = ?"
        with self.reading() as connection:
            found = connection.execute(begun, (run_id,)).fetchone()
        return query.word(found[0]) if found else None

    def run_ids(self) -> list[str]:
        """All runs, oldest first."""
        with self.reading() as connection:
            return [run_id for (run_id,) in connection.execute("SELECT run_id FROM runs ORDER BY seq")]

    def runs(self, wanted: query.Filter | None = None) -> list[query.RunSummary]:
        """The latest runs that pass, in short, newest first. Raises UsageError for a task or model that no run has."""
        with self.reading() as connection:
            return query.summaries(connection, wanted or query.Filter())

    def run_summary(self, run_id: str) -> query.RunSummary | None:
        """One run in short."""
        with self.reading() as connection:
            return query.summary(connection, run_id)

    def of_suite(self, name: str) -> list[str]:
        """The runs of the suite of that name, oldest first."""
        with self.reading() as connection:
            return query.of_suite(connection, name)

    def suites(self) -> list[str]:
        """The names of all suites, the latest first."""
        with self.reading() as connection:
            return query.suites(connection)

    def spending(self, run_id: str) -> tuple[int, int, int, int, float, int]:
        """What a run's models were asked and cost: the fields of `agent.view.state.Spending`."""
        with self.reading() as connection:
            return query.spending(connection, run_id)

    def ancestors(self, attempt: Attempt) -> list[Attempt]:
        """Whom an attempt was derived from: its parent, that one's parent, and so on, as far as they are stored."""
        found: dict[str | None, Attempt] = {attempt.attempt_id: attempt}
        while attempt.parent_id and attempt.parent_id not in found:
            parents = attempts_of(self.load_attempt(attempt.parent_id))
            if not parents:
                break
            [attempt] = parents
            found[attempt.attempt_id] = attempt
        return list(found.values())[1:]

    def load_events(self, run_id: str, until: int | None = None) -> list[Event]:
        """What happened in a run, in order, equal to what was written; empty when there is no such run. `until`: as the
        record was when `last_seq()` said so."""
        return self._events("run_id = :run_id AND (:until IS NULL OR seq <= :until)", run_id=run_id, until=until)

    def later_events(self, run_id: str, after: int, most: int = 500) -> tuple[int, list[Event]]:
        """What was added to a run since its event number `after` (0: the beginning), at most so many, and the number of
        the last: what to give as `after` the next time. Nothing new costs one look into an index."""
        later = "seq IN (SELECT seq FROM events WHERE run_id = :run_id AND seq > :after ORDER BY seq LIMIT :most)"
        with self.reading() as connection:
            found = read_events(connection, later, {"run_id": run_id, "after": after, "most": most})
        return (found[-1][0], [event for _, event in found]) if found else (after, [])

    def attempts(self, run_id: str) -> list[Attempt]:
        """The finished attempts of a run, in the order in which they got their verdict."""
        found = attempts_of(self._events("run_id = :run_id AND attempt_id IS NOT NULL", run_id=run_id))
        return [attempt for attempt in found if attempt.verdict]

    def load_run(self, run_id: str) -> RunStarted:
        """How a run began. Raises StoreError when there is no such run."""
        events = self._events("run_id = :run_id AND kind = :kind", run_id=run_id, kind=RunStarted.kind)
        if started := next((e for e in events if isinstance(e, RunStarted)), None):
            return started
        raise StoreError(f"{self.path}: no run {run_id!r}")

    def earlier(self, run: RunStarted) -> list[Earlier]:
        """What searches of other runs found on this run's GPU before it began."""
        with self.reading() as connection:
            return query.earlier(connection, run)

    def lessons(self, run: RunStarted) -> list[Lesson]:
        """What models of this record's own runs predicted on this run's GPU before it began, and its clock decided."""
        with self.reading() as connection:
            found = query.lessons(connection, run)
            sources = read_texts(connection, (one.task_source for one in found))
        return [dataclasses.replace(one, task_source=sources.get(one.task_source, "")) for one in found]

    def load_messages(self, run_id: str) -> list[Event]:
        """How a run began, and what was said in it: all that its conversations are made of."""
        return self._events("run_id = :run_id AND kind IN ('run_started', 'said', 'replied')", run_id=run_id)

    def load_course(self, run_id: str) -> list[Event]:
        """How a run began, went on and ended, what it warned of, and what was judged a second time."""
        kinds = "('run_started', 'run_resumed', 'run_ended', 'warned', 'verified')"
        return self._events(f"run_id = :run_id AND kind IN {kinds}", run_id=run_id)

    def load_attempt(self, attempt_id: str) -> list[Event]:
        """What happened to one attempt; empty when there is no such attempt."""
        return self._events("attempt_id = :attempt_id", attempt_id=attempt_id)

    def find_run(self, text: str) -> str:
        """The id of the run with this id, or of the only one whose id starts so. Raises StoreError."""
        with self._finding() as connection:
            return query.run_named(text, connection)

    def find_attempt_id(self, text: str) -> str:
        """The id of the attempt with this id, or the best of the run with this id, or the only one whose id starts so;
        "<start of a run id>/<number>" will do. Raises StoreError when there is none, or more than one."""
        with self._finding() as connection:
            return query.attempt_named(text, connection, self._best_of)

    def find_attempt(self, text: str) -> tuple[RunStarted, Attempt]:
        """The attempt that `find_attempt_id` finds, and how its run began. Raises StoreError."""
        [found] = attempts_of(events := self.load_attempt(self.find_attempt_id(text)))
        return self.load_run(events[0].run_id), found

    def load_trajectory(self, run_id: str) -> Trajectory:
        """A run without its conversations. Raises ValueError when there is no such run."""
        return trajectory(self._events("run_id = :run_id AND kind NOT IN ('said', 'replied')", run_id=run_id))

    def _best_of(self, run_id: str) -> str | None:
        run = self.load_trajectory(run_id)
        leader = run.best if run.best and run.best.stands else best(run.attempts)
        return leader.attempt_id if leader else None

    def last_seq(self, run_id: str | None = None) -> int:
        """The number of the latest event, or of a run's latest, 0 without one. Rows are only added, so it names a state
        of the record."""
        of = "" if run_id is None else " WHERE run_id = ?"
        with self.reading() as connection:
            asked = () if run_id is None else (run_id,)
            return int(connection.execute(f"SELECT coalesce(max(seq), 0) FROM events{of}", asked).fetchone()[0])

    def choose(
        self, tasks: Sequence[str] | None = None, authors: Sequence[str] | None = None, until: int | None = None
    ) -> list[query.ChosenRun]:
        """The runs of some tasks (names, or hashes of their files) and authors (or providers: "anthropic"), oldest
        first."""
        with self.reading() as connection:
            return query.chosen(connection, tasks, authors, until)

    def task_sources(self) -> dict[str, tuple[str, str]]:
        """Name and source of every task that was ever run, by the hash of its file; what was run first comes first."""
        with self.reading() as connection:
            found = query.tasks(connection)
            texts = read_texts(connection, (address for _, _, address in found))
        return {sha256: (task, texts[address]) for task, sha256, address in found if address in texts}

    def machines(self) -> list[Json]:
        """What was noted of every machine that ran or verified anything, each once."""
        with self.reading() as connection:
            return query.machines(connection)

    def trajectories(
        self,
        runs: Sequence[query.ChosenRun] | None = None,
        *,
        conversations: bool = False,
        cases: bool = False,
        until: int | None = None,
    ) -> Iterator[Trajectory]:
        """These runs (None: all, oldest first), a few at a time. Conversations are empty unless asked for, and so are
        the cases of verdicts, which are half of what there is to read. `until`: as the record was when `last_seq()`
        said so (None: now). Rows are only added, so that names one view of the record, and nothing is locked between
        two batches. Raises StoreError."""
        until = self.last_seq() if until is None else until
        said = "" if conversations else " AND kind NOT IN ('said', 'replied')"
        where = f"run_id IN (SELECT value FROM json_each(:runs)) AND seq <= :until{said}"
        for batch in _batches(self.choose(until=until) if runs is None else runs):
            by_run: dict[str, list[Event]] = {run_id: [] for run_id in batch}
            for event in self._events(where, cases=cases, documents=False, runs=json.dumps(batch), until=until):
                by_run[event.run_id].append(event)
            for events in by_run.values():
                with _one_line(self.path, "reading"):
                    made = trajectory(events)
                yield made

    def sources(self, runs: Sequence[query.ChosenRun], until: int | None = None) -> Iterator[tuple[str, str]]:
        """The ids and sources of these runs' attempts, a few runs at a time. Raises StoreError."""
        until = self.last_seq() if until is None else until
        for batch in _batches(runs):
            with self.reading() as connection:
                found = query.source_addresses(connection, batch, until)
                texts = read_texts(connection, (address for _, address in found))
            for attempt_id, address in found:
                if address not in texts:
                    raise StoreError(f"{self.path}: the source of {attempt_id} is missing; {WAY_OUT}")
                yield attempt_id, texts[address]

    @contextlib.contextmanager
    def _finding(self) -> Iterator[sqlite3.Connection]:
        try:
            with self.reading() as connection:
                yield connection
        except query.NotFound as error:
            raise StoreError(f"{self.path}: {error}") from error

    def _events(self, where: str, *, cases: bool = True, documents: bool = True, **values: object) -> list[Event]:
        with self.reading() as connection:
            return [event for _, event in read_events(connection, where, values, cases=cases, documents=documents)]

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One view of the database, whatever is written meanwhile, past SQLAlchemy, whose rows cost more than reading.
        Errors become StoreErrors."""
        with _one_line(self.path, "reading"), self._engine.begin() as connection:
            yield _sqlite(connection.connection.driver_connection)


def _batches(runs: Iterable[query.ChosenRun]) -> Iterator[list[str]]:
    """Ids of runs in their order, as many together as have some _BATCH_ATTEMPTS attempts."""
    batch: list[str] = []
    held = 0
    for run in runs:
        if batch and (held + run.attempts > _BATCH_ATTEMPTS or len(batch) == _BATCH_ATTEMPTS):
            yield batch
            batch, held = [], 0
        batch.append(run.run_id)
        held += run.attempts
    if batch:
        yield batch


def _insert(connection: Connection, event: Event, merged_from: str | None = None) -> None:
    """Store an event, unless it is stored already."""
    rows = to_rows(event)
    if connection.scalar(select(EVENTS.c.seq).where(EVENTS.c.digest == rows.event["digest"])) is not None:
        return
    if texts := [{"sha256": sha256, "data": zlib.compress(raw)} for sha256, raw in rows.texts.items()]:
        connection.execute(insert(TEXTS).on_conflict_do_nothing(), texts)
    row = rows.event | {"merged_from": merged_from}
    seq = connection.scalar(insert(EVENTS).values(row).returning(EVENTS.c.seq))
    for table, values in rows.details:
        connection.execute(insert(table), [v | {"seq": seq} for v in values])


def _name(event: Event) -> str:
    """What an event is about, for a message."""
    return getattr(event, "attempt_id", None) or f"run {event.run_id}"


def _sqlite(driver: object) -> sqlite3.Connection:
    assert isinstance(driver, sqlite3.Connection)
    return driver


def _engine(path: Path) -> Engine:
    """SQLAlchemy over `path`. We begin transactions ourselves: the driver would begin them late, and not for reads."""
    engine = create_engine(URL.create("sqlite", database=str(path.absolute())))

    def connected(driver: Any, _: Any) -> None:
        driver.isolation_level = None
        bound(driver)
        for pragma in (f"busy_timeout = {BUSY_TIMEOUT_MS}", "foreign_keys = ON", "synchronous = NORMAL"):
            driver.execute(f"PRAGMA {pragma}")

    def begun(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))

    listen(engine, "connect", connected)
    listen(engine, "begin", begun)
    return engine


def bound(connection: sqlite3.Connection) -> None:
    """Let no value that is read or computed be longer than the longest text."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_TEXT_BYTES)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's advisory lock while the database is made or converted."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _one_line(path: Path, doing: str) -> Iterator[None]:
    """Every way in which SQLite, the disk or a damaged file can fail, as a StoreError of one line."""
    try:
        yield
    except IntegrityError as error:
        hint = "; is the same run open in another process?" if "UNIQUE" in str(error.orig) else ""
        raise Contradiction(f"{path}: {doing}: contradicts what is stored ({error.orig}){hint}") from error
    except DBAPIError as error:
        raise StoreError(f"{path}: {doing}: {error.orig}; {WAY_OUT}") from error
    except (
        SQLAlchemyError,
        sqlite3.Error,
        OSError,
        OverflowError,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: damage
        why = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
        raise StoreError(f"{path}: {doing}: {why}; {WAY_OUT}") from error
