"""Joins another database into ours by content: events by their digest, texts by their sha256. Whole runs at a time.

Events keep their order within a run and get new numbers. What both have is not doubled, so merging again does nothing.
A run that both have must be the same run: what one has more may only come after what both have. Verifications are free:
several machines may have judged an attempt again, and all of them are kept.
"""

import contextlib
import hashlib
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from agent.record import tables as t
from agent.record.alive import is_plain
from agent.record.other import BUSY_TIMEOUT_S, read_only
from agent.record.rows import DETAILS
from agent.record.standings import REFRESH
from tools.errors import StoreError

BATCH_EVENTS = 20_000  # of one transaction: well under a second, in which a run that goes on has to wait
PAUSE_S = 0.02  # between transactions, for those who wait
_DETAILS = tuple(map(t.table, DETAILS))
_REFERENCES = [(x.name, c.name) for x in _DETAILS for c in x.columns if c.name.endswith("_ref")]
_STANDINGS = REFRESH.format(where="r.run_id IN (SELECT run_id FROM temp.coming)")


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


class _Unfit(Exception):
    """These runs cannot be stored as they are; when it is one, the message says why."""


Progress = Callable[[Merged, int], None]  # what has come so far, and how many events have been looked at


def merge(
    ours: Path, other: Path, *, dry_run: bool = False, progress: Progress = lambda so_far, events: None
) -> Merged:
    """Bring what `other` has, and `ours` lacks, into `ours`; both have the current schema. Each transaction leaves
    whole runs. Raises StoreError when a file cannot be read or written."""
    total, seen = Merged(), 0
    with _joined(ours, other) as connection:
        for batch in _batches(connection):
            begin = "BEGIN" if dry_run else "BEGIN IMMEDIATE"
            total = total.and_(_batch(connection, [run_id for run_id, _ in batch], begin))
            seen += sum(n for _, n in batch)
            progress(total, seen)
            time.sleep(0 if dry_run else PAUSE_S)
    return total


def count_events(other: Path) -> int:
    """How many events there are to look at."""
    with contextlib.closing(sqlite3.connect(read_only(other), uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM events").fetchone()[0])


@contextlib.contextmanager
def _joined(ours: Path, other: Path) -> Iterator[sqlite3.Connection]:
    """Our database as `main`, the other one as `other`, which cannot be written."""
    uri = f"file:{quote(str(ours.absolute()))}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    try:
        for pragma in ("foreign_keys = ON", "synchronous = NORMAL", "cache_size = -65536", "temp_store = MEMORY"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("ATTACH ? AS other", (read_only(other),))
        connection.execute("CREATE TEMP TABLE coming (run_id TEXT PRIMARY KEY) WITHOUT ROWID")
        connection.execute("CREATE TEMP TABLE moved (old INTEGER PRIMARY KEY, new INTEGER NOT NULL)")
        yield connection
    except (sqlite3.Error, OverflowError) as error:
        raise StoreError(f"merging {other} into {ours}: {error}; the runs that were merged before are kept") from error
    finally:
        connection.close()


def _batches(connection: sqlite3.Connection) -> Iterator[list[tuple[str, int]]]:
    """The other's runs, oldest first, each with its number of events."""
    counts = dict(connection.execute("SELECT run_id, count(*) FROM other.events GROUP BY run_id"))
    batch: list[tuple[str, int]] = []
    for (run_id,) in connection.execute("SELECT run_id FROM other.runs ORDER BY seq").fetchall():
        batch.append((run_id, counts.get(run_id, 0)))
        if sum(n for _, n in batch) >= BATCH_EVENTS:
            yield batch
            batch = []
    if batch:
        yield batch


def _batch(connection: sqlite3.Connection, runs: Sequence[str], begin: str) -> Merged:
    """Merge some runs in one transaction, or one by one to find those that do not fit."""
    connection.execute(begin)
    try:
        found = _sorted_out(connection, runs)
        if begin == "BEGIN IMMEDIATE":
            _bring(connection, found)
            connection.execute("COMMIT")
        return found
    except (sqlite3.IntegrityError, _Unfit) as error:
        _roll_back(connection)
        if len(runs) == 1:
            return Merged(clashes=(Clash(runs[0], f"contradicts what is stored, or is damaged ({error})"),))
        total = Merged()
        for run_id in runs:
            total = total.and_(_batch(connection, [run_id], begin))
        return total
    finally:
        _roll_back(connection)


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _sorted_out(connection: sqlite3.Connection, runs: Sequence[str]) -> Merged:
    """Which of the runs are new, longer there than here, known, or others under the same name. Leaves the first two in
    `coming`, and the numbers of their missing events, with those they will get, in `moved`."""
    strange = [run_id for run_id in runs if not is_plain(run_id)]
    runs = [run_id for run_id in runs if run_id not in strange]
    _choose(connection, runs)
    lacking = _missing(connection)
    here = {run_id for (run_id,) in connection.execute("SELECT run_id FROM main.runs JOIN temp.coming USING (run_id)")}
    left_out = [r for r in runs if r in lacking and r in here and not _one_extends_the_other(connection, r)]
    coming = [r for r in runs if r in lacking and r not in left_out]
    _choose(connection, coming)
    last = connection.execute("SELECT coalesce(max(seq), 0) FROM main.events").fetchone()[0]
    numbered = f"SELECT o.seq, ? + row_number() OVER (ORDER BY o.seq) {_LACKING}"
    connection.execute(f"INSERT INTO temp.moved {numbered}", (last,))
    attempts = "SELECT count(*) FROM temp.moved AS m CROSS JOIN other.attempts AS a ON a.seq = m.old"
    return Merged(
        tuple(r for r in coming if r not in here),
        tuple(r for r in coming if r in here),
        tuple(r for r in runs if r not in lacking),
        sum(lacking[r] for r in coming),
        connection.execute(attempts).fetchone()[0],
        (*(Clash(r, _CLASH) for r in left_out), *(Clash(r, _STRANGE) for r in strange)),
    )


_STRANGE = "its id is no name of a folder"
_CLASH = "two different runs have this id: neither goes on where the other ends"
_LACKING = """
FROM temp.coming AS c CROSS JOIN other.events AS o ON o.run_id = c.run_id
WHERE NOT EXISTS (SELECT 1 FROM main.events AS m WHERE m.digest = o.digest)
"""
# A verification is no part of the run itself: it may be made anywhere, at any time.
_OWN = """
SELECT e.digest FROM {db}.events AS e LEFT JOIN {db}.verifications AS v ON v.seq = e.seq
WHERE e.run_id = ? AND coalesce(v.purpose, '') != 'verify' ORDER BY e.seq
"""


def _choose(connection: sqlite3.Connection, runs: Sequence[str]) -> None:
    connection.execute("DELETE FROM temp.coming")
    connection.execute("DELETE FROM temp.moved")
    connection.executemany("INSERT OR IGNORE INTO temp.coming VALUES (?)", [(run_id,) for run_id in runs])


def _missing(connection: sqlite3.Connection) -> dict[str, int]:
    return dict(connection.execute(f"SELECT o.run_id, count(*) {_LACKING} GROUP BY o.run_id"))


def _one_extends_the_other(connection: sqlite3.Connection, run_id: str) -> bool:
    ours, theirs = (
        [digest for (digest,) in connection.execute(_OWN.format(db=db), (run_id,))] for db in ("main", "other")
    )
    shared = min(len(ours), len(theirs))
    return ours[:shared] == theirs[:shared]


def _bring(connection: sqlite3.Connection, found: Merged) -> None:
    if not found.events:
        return
    _bring_texts(connection)
    for x in (t.table(t.EventRow), *_DETAILS):
        names = [f'"{c.name}"' for c in x.columns if c.name != "seq"]
        connection.execute(
            f"INSERT INTO main.{x.name} (seq, {', '.join(names)}) SELECT m.new, {', '.join(f'o.{n}' for n in names)} "
            f"FROM temp.moved AS m CROSS JOIN other.{x.name} AS o ON o.seq = m.old"
        )
    connection.execute(_STANDINGS)


def _bring_texts(connection: sqlite3.Connection) -> None:
    wanted = " UNION ".join(
        f"SELECT o.{column} AS sha256 FROM temp.moved AS m CROSS JOIN other.{name} AS o ON o.seq = m.old"
        for name, column in _REFERENCES
    )
    lacking = f"SELECT sha256 FROM ({wanted}) WHERE sha256 NOT IN (SELECT sha256 FROM main.texts)"
    texts = connection.execute(f"SELECT sha256, data FROM other.texts WHERE sha256 IN ({lacking})")
    while some := texts.fetchmany(500):
        for sha256, data in some:
            _check_text(sha256, data)
        connection.executemany("INSERT OR IGNORE INTO main.texts VALUES (?, ?)", some)


def _check_text(sha256: str, data: bytes) -> None:
    """A damaged text would stay in our record for good, and stop every export that meets it."""
    try:
        whole = hashlib.sha256(zlib.decompress(data)).hexdigest() == sha256
    except (zlib.error, TypeError):
        whole = False
    if not whole:
        raise _Unfit(f"the text {sha256[:16]} is not what its address says")
