"""The only module that opens the database. One short transaction per event; reading folds the events again.

WAL lets readers go on while one process writes; several processes queue for up to 30 s. A commit is in the kernel's
hands when `write` returns, so `kill -9` loses nothing that was written (a power cut may lose the last moments).
"""

import contextlib
import fcntl
import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from sqlalchemy import URL, Connection, Engine, create_engine, select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.event import listen
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from kerneltune.agent.attempt import Attempt, Earlier, best
from kerneltune.agent.events import Event, RunStarted, attempts_of, is_stored
from kerneltune.agent.record import query
from kerneltune.agent.record.rows import EventRow, TextRow, read_events, read_texts, table, to_rows
from kerneltune.agent.record.schema import prepare
from kerneltune.agent.record.trajectory import Trajectory, trajectory
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.errors import StoreError

FILE_NAME = "runs.db"
BUSY_TIMEOUT_MS = 30_000
WAY_OUT = "see that the disk and the file are in order, or give another runs directory"
EVENTS, TEXTS = table(EventRow), table(TextRow)
_BATCH_ATTEMPTS = 500  # of the runs that are read together: memory stays flat, queries stay few


class Contradiction(StoreError):
    """What was to be stored is at odds with what is: another run with this id, a reference to nothing."""


class Store:
    """The record of all runs of one runs directory. Safe to use from several threads; close it, or use `with`."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self.path = path
        self._engine = engine
        self._writer = engine.execution_options(begin="BEGIN IMMEDIATE")
        self._lock = threading.Lock()  # threads take turns here; SQLite's own wait sleeps between tries

    @classmethod
    def open(cls, runs_dir: Path) -> Self:
        """Open the record in `runs_dir`, made or converted as needed. Raises StoreError when that cannot be done."""
        path = runs_dir / FILE_NAME
        with _one_line(path, "opening"):
            runs_dir.mkdir(parents=True, exist_ok=True)
            store = cls(_engine(path), path)
            try:
                with _locked(runs_dir), contextlib.closing(store._engine.raw_connection()) as connection:
                    prepare(_sqlite(connection.driver_connection), path)
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
        with self._lock, _one_line(self.path, f"{event.kind!r} of {_name(event)}"), self._writer.begin() as connection:
            _insert(connection, event)

    def write_all(self, events: Iterable[Event]) -> None:
        """Store events in one transaction: all of them or, when one contradicts what is stored or getting the next one
        fails, none. Raises Contradiction and StoreError."""
        with self._lock, _one_line(self.path, "writing"), self._writer.begin() as connection:
            for event in events:
                _insert(connection, event)

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
        leader = run.best if run.best and run.best.accepted else best(run.attempts)
        return leader.attempt_id if leader else None

    def last_seq(self) -> int:
        """The number of the latest event, 0 without one. Rows are only added, so it names a state of the record."""
        with self.reading() as connection:
            return int(connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])

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


def _insert(connection: Connection, event: Event) -> None:
    """Store an event, unless it is stored already."""
    rows = to_rows(event)
    if connection.scalar(select(EVENTS.c.seq).where(EVENTS.c.digest == rows.event["digest"])) is not None:
        return
    if texts := [{"sha256": sha256, "data": zlib.compress(raw)} for sha256, raw in rows.texts.items()]:
        connection.execute(insert(TEXTS).on_conflict_do_nothing(), texts)
    seq = connection.scalar(insert(EVENTS).values(rows.event).returning(EVENTS.c.seq))
    for model, values in rows.details:
        connection.execute(insert(table(model)), [v | {"seq": seq} for v in values])


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
        for pragma in (f"busy_timeout = {BUSY_TIMEOUT_MS}", "foreign_keys = ON", "synchronous = NORMAL"):
            driver.execute(f"PRAGMA {pragma}")

    def begun(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))

    listen(engine, "connect", connected)
    listen(engine, "begin", begun)
    return engine


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
        zlib.error,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: damage
        why = error.strerror if isinstance(error, OSError) else str(error).partition("\n")[0]
        raise StoreError(f"{path}: {doing}: {why}; {WAY_OUT}") from error
