"""Which attempts are rows: the best of each task, pairs of which one is better, and how many of a task. Pure.

Nothing here rests on a rank without a clock. What was not timed is right or not; that it is faster than another is
unknown.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from random import Random
from typing import Literal

from kerneltune.agent.export.outcome import Lineage, fails, right
from kerneltune.agent.record.trajectory import AttemptRecord, Trajectory
from kerneltune.tools.schema.errors import UsageError

Per = Literal["task", "target", "run"]  # `target`: a task on each GPU, or on each architecture where nothing is timed
By = Literal["right", "faster"]
Rank = tuple[int, float, float, bool, float, str]
_TIERS = {"confirmed": 0, "judged": 1}
_SCREENED, _UNTIMED = 2, 3


class Champions:
    """The `top` attempts per task, target or run, over all runs; keeps ids and numbers only.

    What is best across machines: a time that was confirmed before one that was judged, before one that was only
    screened, before none; then the lower end of the speed-up over the fastest baseline, in which a machine's own speed
    cancels out. Of what was not timed the first that was right comes first: an order, not a place. `see` every
    trajectory before the first `chosen`.
    """

    def __init__(self, per: Per = "task", top: int = 1) -> None:
        if top < 1:
            raise UsageError(f"top={top}: at least one attempt must be wanted")
        self._per, self._top = per, top
        self._best: dict[str, list[Rank]] = {}

    def see(self, trajectory: Trajectory) -> None:
        """Remember who leads."""
        best_id = trajectory.best.attempt_id if trajectory.best else None
        ranks = {_rank(a, leads=a.attempt_id == best_id) for a in trajectory.attempts if right(a)}
        key = self._key(trajectory)
        if leaders := nsmallest(self._top, {*self._best.get(key, []), *ranks}):
            self._best[key] = leaders

    def chosen(self, trajectory: Trajectory) -> Iterator[tuple[int | None, AttemptRecord]]:
        """Those of one run that are among the best, with their place from 1; None for what was not timed."""
        places = {
            rank[-1]: None if rank[0] == _UNTIMED else place
            for place, rank in enumerate(self._best.get(self._key(trajectory), []), 1)
        }
        for attempt in trajectory.attempts:
            if attempt.attempt_id in places:
                yield places[attempt.attempt_id], attempt

    def _key(self, trajectory: Trajectory) -> str:
        run = trajectory.run
        if self._per == "run":
            return run.run_id
        return run.task_sha256 if self._per == "task" else f"{run.task_sha256} {run.gpu or run.arch}"


def _rank(attempt: AttemptRecord, *, leads: bool) -> Rank:
    """Smaller is better."""
    if attempt.timing is None:
        return _UNTIMED, 0.0, 0.0, False, attempt.at, attempt.attempt_id
    tier = _TIERS.get(attempt.tier or "", _SCREENED)
    gain = -(attempt.speedup_low or 0.0)
    return tier, gain, attempt.timing.median_us, not leads, attempt.at, attempt.attempt_id


class Quota:
    """At most `per_run` rows of a run and `per_task` of a task. Runs of a task share alike; what one cannot use goes to
    the others. `count` every run before the first `share`. Keeps one number for each run."""

    def __init__(self, per_run: int, per_task: int) -> None:
        if min(per_run, per_task) < 1:
            raise UsageError(f"per_run={per_run}, per_task={per_task}: both must be at least 1")
        self._per_run, self._per_task = per_run, per_task
        self._wanted: dict[str, dict[str, int]] = {}
        self._shares: dict[str, Mapping[str, int]] = {}

    def count(self, task: str, run_id: str, n_rows: int) -> None:
        """A run could have so many rows."""
        if n_rows:
            self._wanted.setdefault(task, {})[run_id] = min(n_rows, self._per_run)
            self._shares.pop(task, None)

    def share(self, task: str, run_id: str, n_rows: int) -> int:
        """How many it may have. A run that was never counted has what one run may have."""
        wanted = self._wanted.get(task, {})
        if run_id not in wanted:
            return min(n_rows, self._per_run, self._per_task)
        if task not in self._shares:
            self._shares[task] = _shared(wanted, self._per_task)
        return self._shares[task][run_id]


def _shared(wanted: Mapping[str, int], total: int) -> Mapping[str, int]:
    """Each gets what it wants or an equal part of what is left, those that want least first."""
    given: dict[str, int] = {}
    order: Sequence[str] = sorted(wanted, key=lambda run_id: (wanted[run_id], run_id))
    for i, run_id in enumerate(order):
        given[run_id] = min(wanted[run_id], total // (len(order) - i))
        total -= given[run_id]
    return given


@dataclass(frozen=True)
class Preference:
    """`related`: one was derived from the other. `margin`: of two times, how much faster the better one is at least."""

    by: By
    better: AttemptRecord
    worse: AttemptRecord
    related: bool
    margin: float | None = None


def preferences(trajectory: Trajectory, seed: int, least_margin: float = 1.0) -> list[Preference]:
    """Pairs of attempts of one run of which one is known to be better, the same for the same seed: it is right and the
    other is not, or it is faster. Faster is only what was timed on the same GPU with intervals that do not overlap.

    Each attempt is the worse one of at most one pair of a kind, so the work grows as the attempts do. It is paired with
    its nearest right descendant, its fastest child or its parent where that is the better one (they differ by what was
    changed), else with one drawn at random. Reads no texts.
    """
    lineage = Lineage(trajectory.attempts)
    rng = Random(f"{seed} {trajectory.run.run_id}")
    found = list(_right_over_failing(trajectory.attempts, lineage, rng))
    if trajectory.run.gpu is not None:
        found += _faster_over_slower(trajectory.attempts, lineage, rng, least_margin)
    return found


def _right_over_failing(attempts: Sequence[AttemptRecord], lineage: Lineage, rng: Random) -> Iterator[Preference]:
    good = [a for a in attempts if right(a)]
    for attempt in attempts if good else ():
        if fails(attempt):
            reached, parent = lineage.nearest(attempt), lineage.parent(attempt)
            near = reached.attempt if reached else parent if parent and right(parent) else None
            yield Preference("right", near or rng.choice(good), attempt, near is not None)


def _faster_over_slower(
    attempts: Sequence[AttemptRecord], lineage: Lineage, rng: Random, least_margin: float
) -> Iterator[Preference]:
    timed = sorted((a for a in attempts if right(a) and a.timing is not None), key=lambda a: (_high_us(a), a.number))
    highs = [_high_us(a) for a in timed]
    places = {a.attempt_id: place for place, a in enumerate(timed)}
    parents = [lineage.parent(a) for a in timed]
    fastest_child = {p.attempt_id: i for i, p in reversed(list(enumerate(parents))) if p is not None}
    for attempt, parent in zip(timed, parents, strict=True):
        n_faster = bisect_left(highs, _low_us(attempt) / least_margin)
        if n_faster:
            relatives = (fastest_child.get(attempt.attempt_id), places.get(parent.attempt_id) if parent else None)
            near = next((place for place in relatives if place is not None and place < n_faster), None)
            better = timed[rng.randrange(n_faster) if near is None else near]
            yield Preference("faster", better, attempt, near is not None, _low_us(attempt) / _high_us(better))


def _low_us(attempt: AttemptRecord) -> float:
    return attempt.timing.low_us if attempt.timing else float("-inf")


def _high_us(attempt: AttemptRecord) -> float:
    return attempt.timing.high_us if attempt.timing else float("inf")
