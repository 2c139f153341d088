"""How the record behaves with a million attempts: makes such a database, then measures it. Prints JSON.

    python -m benchmarks.store_scale --attempts 1000000 --out DIR     # some 15 minutes, about 8 GB
    python -m benchmarks.store_scale --out DIR                        # measures the one that is there

The database goes through the real tables: every event becomes rows as in `Store.write` (`agent.record.rows`), only many
runs share a transaction. Attempts are made up, see `benchmarks.made_runs`; texts have the size of real ones, plans and
providers' own items included. The same --seed makes the same database. Measuring writes adds the runs it wrote.
"""

import argparse
import itertools
import json
import multiprocessing
import resource
import sqlite3
import statistics
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

from sqlalchemy.dialects import sqlite
from sqlmodel import SQLModel

from agent.record import tables as t
from agent.record.events import Event
from agent.record.rows import is_stored, to_rows
from agent.record.store import FILE_NAME, Store
from benchmarks.made_runs import ATTEMPTS_A_RUN, RunMaker

CHUNK_RUNS = 20
COMMIT_CHUNKS = 25
SLICE_ATTEMPTS = 5000
Tuples = dict[str, list[tuple[Any, ...]]]  # rows by table, each with a `seq` that counts from 0 in its run


def prepared(indices: Iterable[int], seed: int, attempts: int) -> list[tuple[int, Tuples]]:
    """The rows of some runs, and how many events each run has; `attempts` are those of all runs together."""
    return [_run_rows(events(index, seed, attempts)) for index in indices]


def events(index: int, seed: int, attempts: int = sys.maxsize) -> list[Event]:
    """The stored events of a run; the last run of `attempts` is a shorter one."""
    rest = attempts - index * ATTEMPTS_A_RUN
    made = RunMaker(index, seed, attempts=min(rest, ATTEMPTS_A_RUN)).events()
    return [event for event in made if is_stored(event)]


def _run_rows(run: list[Event]) -> tuple[int, Tuples]:
    tuples: Tuples = defaultdict(list)
    for seq, event in enumerate(run):
        rows = to_rows(event)
        tuples["texts"] += [(sha256, zlib.compress(raw)) for sha256, raw in rows.texts.items()]
        written: list[tuple[type[SQLModel], list[dict[str, Any]]]] = [(t.EventRow, [rows.event]), *rows.details]
        for model, values in written:
            bind = _binder(model)
            tuples[t.table(model).name] += [bind(value, seq) for value in values]
    return len(run), dict(tuples)


@cache
def _binder(model: type[SQLModel]) -> Callable[[dict[str, Any], int], tuple[Any, ...]]:
    """Makes a row ready for the driver, in the order of the columns, by the columns' own types."""
    dialect = sqlite.dialect()
    columns = [(c.name, c.type.dialect_impl(dialect).bind_processor(dialect)) for c in t.table(model).columns]

    def bind(values: dict[str, Any], seq: int) -> tuple[Any, ...]:
        row = values | {"seq": seq}
        return tuple(process(row[name]) if process else row[name] for name, process in columns)

    return bind


def fill(folder: Path, attempts: int, seed: int, jobs: int = 2) -> None:
    """Make the database in `folder`, which must not have one. Raises FileExistsError."""
    if (folder / FILE_NAME).exists():
        raise FileExistsError(folder / FILE_NAME)
    Store.open(folder).close()
    runs = -(-attempts // ATTEMPTS_A_RUN)
    chunks = [range(i, min(i + CHUNK_RUNS, runs)) for i in range(0, runs, CHUNK_RUNS)]
    connection = sqlite3.connect(folder / FILE_NAME, isolation_level=None)
    for pragma in ("journal_mode = DELETE", "synchronous = OFF", "cache_size = -400000"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        _load(connection, pool.imap(partial(prepared, seed=seed, attempts=attempts), chunks))
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.close()


def _load(connection: sqlite3.Connection, chunks: Iterable[list[tuple[int, Tuples]]]) -> None:
    base, chunks = 1, iter(chunks)
    while taken := list(itertools.islice(chunks, COMMIT_CHUNKS)):
        connection.execute("BEGIN")
        for n_events, tuples in itertools.chain.from_iterable(taken):
            for name, rows in tuples.items():
                _insert(connection, name, rows if name == "texts" else [(base + row[0], *row[1:]) for row in rows])
            base += n_events
        connection.execute("COMMIT")
        print(f"{base - 1} events", file=sys.stderr)


def _insert(connection: sqlite3.Connection, name: str, rows: list[tuple[Any, ...]]) -> None:
    marks = ", ".join("?" * len(rows[0]))
    names = ", ".join(f'"{c.name}"' for c in SQLModel.metadata.tables[name].columns)
    known = "OR IGNORE " if name == "texts" else ""
    connection.executemany(f"INSERT {known}INTO {name} ({names}) VALUES ({marks})", rows)


# Measuring ---------------------------------------------------------------------------------------------------------


def measured(folder: Path, seed: int, write_runs: int) -> dict[str, Any]:
    """The figures of the database in `folder`; `write_runs` more runs are written to time it."""
    figures = _sizes(folder / FILE_NAME)
    with Store.open(folder) as store:
        figures["write_ms"] = _writes(store, seed, write_runs)
        figures["runs_ms"] = _timed_ms(store.runs)
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # a process of its own, whose memory is this alone
        figures["trajectories"] = pool.apply(harvested, (folder,))
        figures["trajectories_whole"] = pool.apply(harvested, (folder, True))
    return figures


def harvested(folder: Path, whole: bool = False) -> dict[str, float]:
    """Reads all runs as trajectories, with conversations and cases if `whole`. Slices of some attempts are timed apart,
    because others may use the machine meanwhile: the quickest tenth says what one core can do."""
    attempts, slices = 0, []
    with Store.open(folder) as store:
        begun, started, mark, seen = time.perf_counter(), time.process_time(), time.process_time(), 0
        for trajectory in store.trajectories(conversations=whole, cases=whole):
            attempts += len(trajectory.attempts)
            if attempts - seen >= SLICE_ATTEMPTS:
                now = time.process_time()
                slices.append((now - mark) / (attempts - seen))
                mark, seen = now, attempts
        cpu_s, wall_s = time.process_time() - started, time.perf_counter() - begun
    quick = sorted(slices)[len(slices) // 10] if slices else cpu_s / max(1, attempts)
    return {
        "attempts": attempts,
        "wall_s": round(wall_s, 1),
        "cpu_s": round(cpu_s, 1),
        "attempts_per_cpu_s": round(attempts / cpu_s),
        "attempts_per_cpu_s_undisturbed": round(1 / quick),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def _sizes(path: Path) -> dict[str, Any]:
    with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as connection:
        counts = {
            name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("runs", "attempts")
        }
        pages = _pages(connection)
    connection.close()
    each = {name: round(size / counts["attempts"], 1) for name, size in pages.items()}
    size = path.stat().st_size
    return {**counts, "bytes": size, "bytes_per_attempt": round(size / counts["attempts"], 1), "by_table": each}


def _pages(connection: sqlite3.Connection) -> dict[str, int]:
    """Bytes by table, an index counting to its table; empty where SQLite was built without dbstat."""
    owners = dict(connection.execute("SELECT name, tbl_name FROM sqlite_master").fetchall())
    sizes: dict[str, int] = defaultdict(int)
    try:
        page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
        # `pgsize` of a whole table wraps at 4 GiB; `pageno` is then the number of its pages
        for name, pages in connection.execute("SELECT name, pageno FROM dbstat WHERE aggregate = 1"):
            sizes[owners.get(name, name)] += pages * page_bytes
    except sqlite3.OperationalError:
        return {}
    return dict(sorted(sizes.items(), key=lambda pair: -pair[1]))


def _writes(store: Store, seed: int, runs: int) -> dict[str, dict[str, float]]:
    """Milliseconds of `Store.write` by the kind of the event."""
    first, spent = len(store.run_ids()), defaultdict[str, list[float]](list)
    for event in itertools.chain.from_iterable(events(first + i, seed) for i in range(runs)):
        started = time.perf_counter()
        store.write(event)
        spent[event.kind].append(1000 * (time.perf_counter() - started))
    return {kind: _summary(values) for kind, values in sorted(spent.items())}


def _summary(values: list[float]) -> dict[str, float]:
    p95 = sorted(values)[int(0.95 * len(values))]
    return {"n": len(values), "median": round(statistics.median(values), 3), "p95": round(p95, 3)}


def _timed_ms(call: Callable[[], object]) -> float:
    """The median of five calls."""
    spent = []
    for _ in range(5):
        started = time.perf_counter()
        call()
        spent.append(1000 * (time.perf_counter() - started))
    return round(statistics.median(spent), 2)


def main() -> int:
    """Make the database if it is not there, measure it, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=20_000, help="of a database that is to be made")
    parser.add_argument("--out", type=Path, required=True, help="the runs directory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes that make rows")
    parser.add_argument("--writes", type=int, default=10, help="runs to write while measuring; 0 leaves it as it is")
    given = parser.parse_args()
    started, folder = time.perf_counter(), given.out.absolute()
    if not (folder / FILE_NAME).exists():
        fill(folder, given.attempts, given.seed, given.jobs)
        print(f"made in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    print(json.dumps(measured(folder, given.seed, given.writes), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
