"""An export from beginning to end: two passes over the store, by several processes, into a folder that is there whole.

The first pass learns what no run knows alone: what formats survey (by a process of its own), and duplicates (by all
others). In the second, processes take blocks of runs one by one, and each block makes files of its own; so the files
are the same whatever the number of processes.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from agent.export.baking import Baked, Baker
from agent.export.duplicates import Share
from agent.export.learning import joined, signatures, survey
from agent.export.recipe import Block, Learned, Recipe
from agent.export.shards import Shard, numbered
from agent.export.statistics import Statistics
from tools.errors import WorkerError
from tools.sandbox_linux import die_with_parent

T = TypeVar("T")


@dataclass
class Outcome:
    """What was written. `filtered`: rows of each format that were left out; `providers`: whose words the rows hold."""

    shards: list[Shard] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics)
    filtered: dict[str, int] = field(default_factory=dict)
    providers: set[str] = field(default_factory=set)

    def add(self, baked: Baked) -> None:
        """One block more."""
        self.shards += baked.shards
        self.statistics.merge(baked.statistics)
        self.providers |= baked.providers
        for name, rows in baked.filtered.items():
            self.filtered[name] = self.filtered.get(name, 0) + rows

    def counts(self) -> dict[tuple[str, str], int]:
        """Rows by format and split."""
        found: dict[tuple[str, str], int] = {}
        for shard in self.shards:
            if not shard.beside:
                key = (shard.format, shard.split)
                found[key] = found.get(key, 0) + shard.rows
        return found


def export(
    recipe: Recipe,
    parts: Sequence[Block],
    folder: Path,
    *,
    processes: int,
    progress: Callable[[str, int], None],
) -> Outcome:
    """Write the data files of an export below `folder`. `progress` hears of a stage, and of attempts that are done in
    it. Raises WorkerError when one of our processes dies, StoreError, OSError."""
    learned = _learned(recipe, parts, processes, progress)
    outcome = Outcome()
    for baked in _baked(recipe, learned, parts, folder, processes):
        outcome.add(baked)
        progress("writing", baked.block.attempts)
    outcome.shards = numbered(folder, outcome.shards)
    return outcome


def _learned(recipe: Recipe, parts: Sequence[Block], processes: int, progress: Callable[[str, int], None]) -> Learned:
    surveys = any(f.surveys for f in recipe.formats)
    if processes == 1 or not (recipe.duplicates or surveys):
        duplicates = joined(_heard(signatures(recipe, p), p, progress) for p in parts) if recipe.duplicates else None
        return Learned(survey(recipe, parts, duplicates) if surveys else recipe.formats, duplicates)
    with _pool(processes) as pool:
        early = surveys and not recipe.filters_duplicates
        seen = _submit(pool, survey, recipe, parts, None) if early else None
        shares = [(_submit(pool, signatures, recipe, p), p) for p in parts] if recipe.duplicates else []
        duplicates = joined(_heard(_result(f), p, progress) for f, p in shares) if shares else None
        if surveys and seen is None:
            seen = _submit(pool, survey, recipe, parts, duplicates)
        if seen is not None:
            progress("comparing runs", 0)
        return Learned(_result(seen) if seen else recipe.formats, duplicates)


def _heard(share: Share, part: Block, progress: Callable[[str, int], None]) -> Share:
    progress("looking for duplicates", part.attempts)
    return share


def _baked(recipe: Recipe, learned: Learned, parts: Sequence[Block], folder: Path, processes: int) -> Iterator[Baked]:
    if processes == 1 or len(parts) == 1:
        baker = Baker(recipe, learned, folder)
        try:
            yield from map(baker.bake, parts)
        finally:
            baker.close()
        return
    with _pool(min(processes, len(parts)), _begin, recipe, learned, folder) as pool:
        for future in as_completed([_submit(pool, _bake, part) for part in parts]):
            yield _result(future)


_baker: Baker | None = None  # of a process of the second pass


def _begin(recipe: Recipe, learned: Learned, folder: Path) -> None:
    global _baker
    _calm()
    _baker = Baker(recipe, learned, folder)


def _bake(part: Block) -> Baked:
    assert _baker is not None, "a process begins with _begin"
    return _baker.bake(part)


def _calm() -> None:
    """Ctrl-C ends this process without a word; the one that a person sees speaks for all. When that one is killed, this
    one must not go on writing into a folder that is another export's by then."""
    parent = multiprocessing.parent_process()
    die_with_parent(parent.pid if parent else None)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _submit(pool: ProcessPoolExecutor, work: Callable[..., T], *arguments: object) -> Future[T]:
    """A process that is started here holds Ctrl-C back until `_calm`: nobody wants to see what it was importing."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(work, *arguments)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _pool(processes: int, begin: Callable[..., None] = _calm, *arguments: object) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes: a fork of one that has threads may hang. What they are at when we fail is not waited for."""
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), begin, arguments)
    try:
        yield pool
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _result(future: Future[T]) -> T:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise WorkerError("a process of the export died; was it killed for want of memory?") from error
