"""Joins another database into ours by content: events by their digest, texts by their sha256. Whole runs at a time.

Events keep their order within a run and get new numbers. What both have is not doubled, so merging again does nothing.
A run that both have must be the same run: what one has more may only come after what both have. Verifications are free:
several machines may have judged an attempt again, and all of them are kept.

The other database is not trusted. It is only read, through the strict decoder, a bounded part at a time; each event
must have the digest that it claims and be about an attempt of its own run, and what becomes the name of a file must be
one plain word. A run that came is marked as such in ours: the Python of its task is not run unasked.
"""

import contextlib
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kerneltune.agent.events import Event, OfAttempt, RunStarted
from kerneltune.agent.record.folder import is_plain
from kerneltune.agent.record.query import VERSION, connected_to_look
from kerneltune.agent.record.store import (
    BUSY_TIMEOUT_MS,
    DETAILS,
    FILE_NAME,
    Contradiction,
    Store,
    bound,
    convert,
    copied,
    digest_of,
    read_events,
    version,
)
from kerneltune.tools.sandbox.scratch import ScratchFolder
from kerneltune.tools.schema.errors import StoreError

_PAGE_EVENTS = 200  # read at a time
_MOST_BYTES = 1 << 29  # of the texts of such a part
_TABLES = {"events", "texts", *(table.name for table in DETAILS)}
_STRANGE = "its id is no name of a folder"
_CLASH = "two different runs have this id: neither goes on where the other ends"


@dataclass(frozen=True)
class Clash:
    """A run that was left out, and why."""

    run_id: str
    why: str


@dataclass(frozen=True)
class Merged:
    """What came of merging databases. `new`: runs that were not here; `extended`: runs of which a part was; `same`:
    runs of which nothing was missing."""

    new: tuple[str, ...] = ()
    extended: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    events: int = 0
    attempts: int = 0
    clashes: tuple[Clash, ...] = ()

    def and_(self, more: "Merged") -> "Merged":
        """Both together."""
        return Merged(
            self.new + more.new,
            self.extended + more.extended,
            self.same + more.same,
            self.events + more.events,
            self.attempts + more.attempts,
            self.clashes + more.clashes,
        )


Progress = Callable[[Merged, int], None]  # what has come so far, and how many events have been looked at


def merge(
    ours: Store,
    other: Path,
    *,
    name: str = "",
    dry_run: bool = False,
    progress: Progress = lambda so_far, events: None,
) -> Merged:
    """Bring what `other` (a path of `opened_other`) has and `ours` lacks into `ours`, each run in one transaction.
    `name`: what a person calls the other one, which is noted of the runs that came. Raises StoreError when a file
    cannot be read or written."""
    total, seen = Merged(), 0
    with _kept(f"merging {other} into {ours.path}"), _connected(other) as theirs:
        for (run_id,) in theirs.execute("SELECT run_id FROM runs ORDER BY seq").fetchall():
            found, events = _run(ours, theirs, run_id, name or str(other), dry_run=dry_run)
            total, seen = total.and_(found), seen + events
            progress(total, seen)
    return total


def count_events(other: Path) -> int:
    """How many events there are to look at."""
    with _connected(other) as connection:
        return int(connection.execute("SELECT count(*) FROM events").fetchone()[0])


# One run ------------------------------------------------------------------------------------------------------------

# (digest, number, kind, whether it belongs to the run itself: a verification, and a look that came to no end, may be
# made anywhere, at any time)
_EVENTS = """
SELECT e.digest, e.seq, e.kind, coalesce(v.purpose, '') NOT IN ('verify', 'unfinished')
FROM events AS e LEFT JOIN verifications AS v ON v.seq = e.seq WHERE e.run_id = ? ORDER BY e.seq
"""


def _run(ours: Store, theirs: sqlite3.Connection, run_id: object, name: str, *, dry_run: bool) -> tuple[Merged, int]:
    """Merge one run; and how many events it has there."""
    if not isinstance(run_id, str) or not is_plain(run_id):
        return Merged(clashes=(Clash(str(run_id), _STRANGE),)), 0
    there = theirs.execute(_EVENTS, (run_id,)).fetchall()
    with ours.reading() as connection:
        here = connection.execute(_EVENTS, (run_id,)).fetchall()
    known = {digest for digest, *_ in here}
    lacking = [(digest, seq) for digest, seq, _, _ in there if digest not in known]
    if not lacking:
        return Merged(same=(run_id,)), len(there)
    if here and not _one_extends_the_other(here, there):
        return Merged(clashes=(Clash(run_id, _CLASH),)), len(there)
    try:
        events = _checked(theirs, lacking)
        if dry_run:
            deque(events, maxlen=0)
        else:
            ours.write_all(events, name)
    except (Contradiction, _Damaged) as error:
        return Merged(clashes=(Clash(run_id, str(error)),)), len(there)
    proposed = sum(kind == "proposed" for digest, _, kind, _ in there if digest not in known)
    new, extended = ((), (run_id,)) if here else ((run_id,), ())
    return Merged(new, extended, events=len(lacking), attempts=proposed), len(there)


def _one_extends_the_other(here: Sequence[Sequence[object]], there: Sequence[Sequence[object]]) -> bool:
    ours, theirs = ([digest for digest, _, _, own in events if own] for events in (here, there))
    shared = min(len(ours), len(theirs))
    return ours[:shared] == theirs[:shared]


class _Damaged(Exception):
    """A run is damaged, or forged; the message says what is wrong with it."""


def _checked(theirs: sqlite3.Connection, lacking: Sequence[tuple[str, int]]) -> Iterator[Event]:
    """The events with these digests and numbers, in order. Raises _Damaged."""
    for start in range(0, len(lacking), _PAGE_EVENTS):
        page = lacking[start : start + _PAGE_EVENTS]
        for (digest, seq), event in zip(page, _read(theirs, [seq for _, seq in page]), strict=True):
            if digest_of(event) != digest:
                raise _Damaged(f"event {seq} is not what its digest says")
            if isinstance(event, RunStarted) and not is_plain(event.task):
                raise _Damaged(f"its task {event.task!r:.60} is no plain name")
            if isinstance(event, OfAttempt) and event.attempt_id.rpartition("/")[0] != event.run_id:
                raise _Damaged(f"event {seq} is about {event.attempt_id!r:.80}, which is no attempt of this run")
            yield event


def _read(theirs: sqlite3.Connection, seqs: Sequence[int]) -> list[Event]:
    marks = {f"s{i}": seq for i, seq in enumerate(seqs)}
    where = f"seq IN ({', '.join(f':{name}' for name in marks)})"
    try:
        return [event for _, event in read_events(theirs, where, marks, most_bytes=_MOST_BYTES)]
    except sqlite3.Error:
        raise
    except Exception as error:
        raise _Damaged(str(error).partition("\n")[0]) from error


# Opening it ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened_other(given: Path, ours: Path) -> Iterator[Path]:
    """A file with all that `given`, a database or the runs directory around it, holds now, in our schema. The file
    itself is never changed. Raises StoreError, of one line, when it is none of ours, damaged, newer, or `ours`."""
    path = database_at(given)
    if not path.is_file():
        raise StoreError(f"{path}: {'no such file' if not path.exists() else 'not a file'}")
    if ours.exists() and os.path.samefile(path, ours):
        raise StoreError(f"{path} is the database of this runs directory itself")
    with ScratchFolder(ours.parent) as scratch:  # where there has to be room anyway
        with _one_line(str(path)):
            source = _current(path, scratch)
        yield source


def database_at(given: Path) -> Path:
    """The database that a person means: the file, or that of the runs directory."""
    return given / FILE_NAME if given.is_dir() else given


def _current(path: Path, scratch: Path) -> Path:
    source = _readable(path, scratch)
    with _connected(source) as connection:
        found = version(connection, path)
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if found is None or not names >= _TABLES or _computes(connection):
            raise StoreError(f"{path} is not a database of kerneltune's")
        if (problem := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise StoreError(f"{path} is damaged: {' '.join(str(problem).split())}")
        if found == str(VERSION):
            return source
        copy = scratch / "converted.db"
        with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as target:
            bound(target)
            connection.backup(target)
            convert(target, found)
    return copy


def _computes(connection: sqlite3.Connection) -> bool:
    """Whether a column is computed when it is read, as none of ours is: a few bytes of a file may become any number."""
    columns = "sqlite_master AS t JOIN pragma_table_xinfo(t.name) AS c ON t.type = 'table'"
    found = f"SELECT 1 FROM {columns} WHERE c.hidden LIMIT 1"
    return connection.execute(found).fetchone() is not None


def _readable(path: Path, scratch: Path) -> Path:
    """The path, or a copy: SQLite reads a WAL database in a folder that it may not write only if a reader is there."""
    with _connected(path) as connection:
        try:
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
            return path
        except sqlite3.OperationalError:
            return copied(path, scratch)


@contextlib.contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    """The database of a path, to be read. What its schema defines may call no function that does more than compute."""
    with contextlib.closing(connected_to_look(path, BUSY_TIMEOUT_MS / 1000)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF")
        bound(connection)
        yield connection


@contextlib.contextmanager
def _kept(doing: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, StoreError) as error:
        raise StoreError(
            f"{doing}: {str(error).partition(chr(10))[0]}; the runs that were merged before are kept"
        ) from error


@contextlib.contextmanager
def _one_line(doing: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, ValueError, RecursionError) as error:
        raise StoreError(f"{doing}: {str(error).partition(chr(10))[0]}") from error
    except OSError as error:
        raise StoreError(f"{doing}: {error.strerror}") from error
