"""The latest runs at a glance, for completion and for the first page: SQLite alone, in a few milliseconds.

Whatever is in the way (no record, an older one, one that is locked) means that there is nothing to show.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

_BUSY_S = 0.2  # a person waits at a prompt
_RUNS = """
SELECT run_id, task, author, judged, accepted, best_attempt_id, best_us,
    CASE WHEN typeof(best_speedup) = 'real' THEN best_speedup END, why
FROM standings ORDER BY seq DESC LIMIT ?
"""
_ATTEMPTS = "SELECT attempt_id FROM attempts WHERE attempt_id >= ? AND attempt_id < ? ORDER BY seq DESC LIMIT ?"
_AFTER_ALL = "\U0010ffff"  # sorts after whatever may follow the start of an id


@dataclass(frozen=True)
class Glance:
    """A run. `best_us` (microseconds) and `best_speedup` (over the fastest baseline) are None when nothing was timed;
    `why` is None while the run goes on, or when its process was killed."""

    run_id: str
    task: str
    author: str
    attempts: int
    accepted: int
    best_attempt_id: str | None
    best_us: float | None
    best_speedup: float | None
    why: str | None


def latest_runs(database: Path, limit: int = 1) -> list[Glance]:
    """The latest runs, newest first."""
    return [Glance(*row) for row in _rows(database, _RUNS, limit)]


def attempts_starting(database: Path, start: str, limit: int = 200) -> list[str]:
    """The ids of the latest attempts whose ids start so."""
    return [row[0] for row in _rows(database, _ATTEMPTS, start, start + _AFTER_ALL, limit)]


def _rows(database: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    with contextlib.suppress(sqlite3.Error, UnicodeError, OSError), _opened(database) as connection:
        rows = connection.execute(query, values).fetchall()
    return rows


@contextlib.contextmanager
def _opened(database: Path) -> Iterator[sqlite3.Connection]:
    """Read-only, so that looking neither makes a record nor upgrades one."""
    address = f"file:{quote(str(database.absolute()))}?mode=ro"
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=_BUSY_S)) as connection:
        yield connection
