"""The only module that opens the database. One short transaction per event; reading folds the events again.

WAL lets readers go on while one process writes; several processes queue for up to 30 s. A commit is in the kernel's
hands when `write` returns, so `kill -9` loses nothing that was written (a power cut may lose the last moments).
"""

import contextlib
import fcntl
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import URL, ColumnElement, Connection, Engine, Select, create_engine, func, select, true
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.event import listen
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from agent.attempt import Attempt, Earlier, best
from agent.record import attempts as folds
from agent.record import listing
from agent.record import tables as t
from agent.record.earlier import earlier
from agent.record.events import Event, Proposed, RunStarted, Updated
from agent.record.harvest import ChosenRun, Wanted, chosen, harvested, machines, sources, task_sources
from agent.record.lookup import NotFound, attempt_named, run_named
from agent.record.rows import DETAILS, Reader, addresses, is_stored, to_rows
from agent.record.schema import SHIPPED, Schema, prepare
from agent.record.standings import follow
from agent.record.trajectory import Trajectory
from tools.codec import DecodeError, Json
from tools.errors import StoreError

FILE_NAME = "runs.db"
BUSY_TIMEOUT_MS = 30_000
WAY_OUT = "see that the disk and the file are in order, or give another runs directory"
EVENTS, RUNS, TEXTS = (t.table(m) for m in (t.EventRow, t.RunRow, t.TextRow))

T = TypeVar("T")


@dataclass(frozen=True)
class StoredAttempt:
    """An attempt found by its id, and the run it is of. `finished` is None when it never got a verdict."""

    run: RunStarted
    proposed: Proposed
    updated: Updated | None
    finished: Attempt | None


class Store:
    """The record of all runs of one runs directory. Safe to use from several threads; close it, or use `with`."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self.path = path
        self._engine = engine
        self._writer = engine.execution_options(begin="BEGIN IMMEDIATE")
        self._lock = threading.Lock()  # threads take turns here; SQLite's own wait sleeps between tries

    @classmethod
    def open(cls, runs_dir: Path, schema: Schema = SHIPPED) -> Self:
        """Open the record in `runs_dir`, made or upgraded as needed. Raises StoreError when that cannot be done."""
        path = runs_dir / FILE_NAME
        with _one_line(path, "opening"):
            runs_dir.mkdir(parents=True, exist_ok=True)
            store = cls(_engine(path), path)
            try:
                with _locked(runs_dir):
                    prepare(store._writer, path, schema)
            except BaseException:
                store.close()
                raise
        return store

    def close(self) -> None:
        """Let go of the file."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, event: Event) -> None:
        """Store an event; nothing happens when it is stored already, or is of a kind that is only shown."""
        if not is_stored(event):
            return
        rows = to_rows(event)
        texts = [{"sha256": sha256, "data": zlib.compress(raw)} for sha256, raw in rows.texts.items()]
        with self._lock, _one_line(self.path, f"{event.kind!r} of {rows.name}"), self._writer.begin() as connection:
            if connection.scalar(select(EVENTS.c.seq).where(EVENTS.c.digest == rows.event["digest"])) is not None:
                return
            if texts:
                connection.execute(insert(TEXTS).on_conflict_do_nothing(), texts)
            seq = connection.scalar(insert(EVENTS).values(rows.event).returning(EVENTS.c.seq))
            for model, values in rows.details:
                connection.execute(insert(t.table(model)), [v | {"seq": seq} for v in values])
            follow(connection, event)

    def run_ids(self) -> list[str]:
        """All runs, oldest first."""
        with self._reading() as connection:
            return list(connection.scalars(select(RUNS.c.run_id).order_by(RUNS.c.seq)))

    def runs(self, wanted: listing.Filter | None = None) -> list[listing.RunSummary]:
        """The latest runs that pass, in short, newest first. Raises UsageError for a task or model that no run has."""
        with self._reading() as connection:
            return listing.summaries(connection, wanted or listing.Filter())

    def run_summary(self, run_id: str) -> listing.RunSummary | None:
        """One run in short."""
        with self._reading() as connection:
            return listing.summary(connection, run_id)

    def attempt_summaries(self, run_id: str, wanted: listing.Filter | None = None) -> list[listing.AttemptSummary]:
        """The attempts of a run that pass, in short, by number."""
        with self._reading() as connection:
            return listing.attempt_summaries(connection, run_id, wanted)

    def ancestors(self, attempt_id: str) -> list[listing.AttemptSummary]:
        """What an attempt was derived from, nearest first."""
        with self._reading() as connection:
            return listing.ancestors(connection, attempt_id)

    def load_events(self, run_id: str, until: int | None = None) -> list[Event]:
        """What happened in a run, in order, equal to what was written; empty when there is no such run. `until`: as the
        record was when `last_seq()` said so."""
        seen = EVENTS.c.seq <= until if until is not None else true()
        return self._events((EVENTS.c.run_id == run_id) & seen)

    def later_events(self, run_id: str, after: int, most: int = 500) -> tuple[int, list[Event]]:
        """What was added to a run since its event number `after` (0: the beginning), at most so many, and the number of
        the last: what to give as `after` the next time. Nothing new costs one look into an index."""
        later = (EVENTS.c.run_id == run_id) & (EVENTS.c.seq > after)
        with self._reading() as connection:
            seqs = list(connection.scalars(select(EVENTS.c.seq).where(later).order_by(EVENTS.c.seq).limit(most)))
        return (seqs[-1], self._events(later & (EVENTS.c.seq <= seqs[-1]))) if seqs else (after, [])

    def attempts(self, run_id: str) -> list[Attempt]:
        """The finished attempts of a run, in the order in which they got their verdict."""
        return folds.finished(self.load_events(run_id))

    def unfinished(self, run_id: str) -> list[Proposed]:
        """What was proposed in a run and never judged."""
        return folds.unfinished(self.load_events(run_id))

    def load_run(self, run_id: str) -> RunStarted:
        """How a run began. Raises StoreError when there is no such run."""
        events = self._events((EVENTS.c.run_id == run_id) & (EVENTS.c.kind == RunStarted.kind))
        if started := next((e for e in events if isinstance(e, RunStarted)), None):
            return started
        raise StoreError(f"{self.path}: no run {run_id!r}")

    def earlier(self, run: RunStarted) -> list[Earlier]:
        """What searches of other runs found on this run's GPU before it began."""
        with self._reading() as connection:
            return earlier(connection, run)

    def load_messages(self, run_id: str) -> list[Event]:
        """How a run began, and what was said in it: all that its conversations are made of."""
        return self._events((EVENTS.c.run_id == run_id) & EVENTS.c.kind.in_(("run_started", "said", "replied")))

    def load_course(self, run_id: str) -> list[Event]:
        """How a run began, went on and ended, what it warned of, and what was judged a second time."""
        kinds = ("run_started", "run_resumed", "run_ended", "warned", "verified")
        return self._events((EVENTS.c.run_id == run_id) & EVENTS.c.kind.in_(kinds))

    def load_attempt(self, attempt_id: str) -> list[Event]:
        """What happened to one attempt; empty when there is no such attempt."""
        return self._events(EVENTS.c.attempt_id == attempt_id)

    def find_run(self, text: str) -> str:
        """The id of the run with this id, or of the only one whose id starts so. Raises StoreError."""
        with self._finding() as connection:
            return run_named(text, connection)

    def find_attempt_id(self, text: str) -> str:
        """The id of the attempt with this id, or the best of the run with this id, or the only one whose id starts so;
        "<start of a run id>/<number>" will do. Raises StoreError when there is none, or more than one."""
        with self._finding() as connection:
            return attempt_named(text, connection, self._best_of)

    def find_attempt(self, text: str) -> StoredAttempt:
        """The attempt that `find_attempt_id` finds. Raises StoreError."""
        events = self.load_attempt(self.find_attempt_id(text))
        proposed = next(e for e in events if isinstance(e, Proposed))
        update = next((e for e in events if isinstance(e, Updated)), None)
        return StoredAttempt(self.load_run(proposed.run_id), proposed, update, next(iter(folds.finished(events)), None))

    def _best_of(self, run_id: str) -> str | None:
        with self._reading() as connection:
            if (named := listing.best_accepted(connection, run_id)) is not None:
                return named
        leader = best(self.attempts(run_id))
        return leader.attempt_id if leader else None

    def last_seq(self) -> int:
        """The number of the latest event, 0 without one. Rows are only added, so it names a state of the record."""
        with self._reading() as connection:
            return connection.scalar(select(func.max(EVENTS.c.seq))) or 0

    def choose(
        self, tasks: Sequence[str] | None = None, authors: Sequence[str] | None = None, until: int | None = None
    ) -> list[ChosenRun]:
        """The runs of some tasks (names, or hashes of their files) and authors (or providers: "anthropic"), oldest
        first."""
        until = self.last_seq() if until is None else until
        with _one_line(self.path, "reading"), self._driver() as driver:
            return chosen(driver, until, tasks, authors)

    def task_sources(self) -> dict[str, tuple[str, str]]:
        """Name and source of every task that was ever run, by the hash of its file."""
        with _one_line(self.path, "reading"), self._driver() as driver:
            return task_sources(driver)

    def machines(self) -> list[Json]:
        """What was noted of every machine that ran or verified anything, each once."""
        with _one_line(self.path, "reading"), self._driver() as driver:
            return machines(driver)

    def trajectories(
        self,
        runs: Sequence[ChosenRun] | None = None,
        *,
        conversations: bool = False,
        cases: bool = False,
        sources: bool = True,
        until: int | None = None,
    ) -> Iterator[Trajectory]:
        """These runs (None: all, oldest first), a few at a time.

        Equal to `trajectory(load_events(run_id))`, except that conversations and cases are empty unless asked for, and
        so is every source without `sources`, which is a third of the work.
        `until`: as the record was when `last_seq()` said so (None: now); nothing is locked between two runs. Raises
        StoreError."""
        until = self.last_seq() if until is None else until
        runs = self.choose(until=until) if runs is None else runs
        return self._each(harvested(self._driver, Wanted(runs, until, conversations, cases, sources)))

    def sources(self, runs: Sequence[ChosenRun], until: int | None = None) -> Iterator[tuple[str, str]]:
        """The ids and sources of these runs' attempts, a few runs at a time. Raises StoreError."""
        until = self.last_seq() if until is None else until
        return self._each(sources(self._driver, Wanted(runs, until)))

    def _each(self, found: Iterator[T]) -> Iterator[T]:
        while True:
            with _one_line(self.path, "reading"):
                one = next(found, None)
            if one is None:
                return
            yield one

    @contextlib.contextmanager
    def _driver(self) -> Iterator[sqlite3.Connection]:
        """The same view of the database without SQLAlchemy, whose rows cost more than reading them."""
        with self._engine.begin() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            yield driver

    @contextlib.contextmanager
    def _finding(self) -> Iterator[Connection]:
        try:
            with self._reading() as connection:
                yield connection
        except NotFound as error:
            raise StoreError(f"{self.path}: {error}") from error

    def _events(self, where: ColumnElement[bool]) -> list[Event]:
        chosen = select(EVENTS.c.seq).where(where)
        with self._reading() as connection:
            rows = _select(connection, select(EVENTS).where(where).order_by(EVENTS.c.seq))
            tables = map(t.table, DETAILS)
            details = {x.name: _select(connection, select(x).where(x.c.seq.in_(chosen))) for x in tables}
            reader = Reader(details, _texts(connection, addresses(details)))
            return [reader.event(row) for row in rows]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        """One view of the database, whatever is written meanwhile."""
        with _one_line(self.path, "reading"), self._engine.begin() as connection:
            yield connection


def _select(connection: Connection, query: Select[Any]) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in connection.execute(query).mappings()]


def _texts(connection: Connection, wanted: Iterable[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    wanted = sorted(wanted)
    for start in range(0, len(wanted), 500):  # SQLite limits the variables of a statement
        query = select(TEXTS.c.sha256, TEXTS.c.data).where(TEXTS.c.sha256.in_(wanted[start : start + 500]))
        found |= {sha256: zlib.decompress(data) for sha256, data in connection.execute(query)}
    return found


def _engine(path: Path) -> Engine:
    """SQLAlchemy over `path`. We begin transactions ourselves: the driver would begin them late, and not for reads."""
    engine = create_engine(URL.create("sqlite", database=str(path.absolute())))

    def connected(driver: Any, _: Any) -> None:
        driver.isolation_level = None
        for pragma in (f"busy_timeout = {BUSY_TIMEOUT_MS}", "foreign_keys = ON", "synchronous = NORMAL"):
            driver.execute(f"PRAGMA {pragma}")

    def begun(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))

    listen(engine, "connect", connected)
    listen(engine, "begin", begun)
    return engine


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's advisory lock while the database is made or upgraded."""
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
        raise StoreError(f"{path}: {doing}: contradicts what is stored ({error.orig}){hint}") from error
    except DBAPIError as error:
        raise StoreError(f"{path}: {doing}: {error.orig}; {WAY_OUT}") from error
    except (SQLAlchemyError, sqlite3.Error, OSError, OverflowError, zlib.error, DecodeError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
        raise StoreError(f"{path}: {doing}: {why}; {WAY_OUT}") from error
