"""The best attempts of each task over all runs, found in one pass that keeps ids and numbers only.

What is best across machines: a time that was confirmed before one that was judged, before one that was only screened,
before none; then the lower end of the speed-up over the fastest baseline, in which a machine's own speed cancels out.
What was not timed is ordered by the run's own key (bytes, spills, occupancy, registers): an order, not a time.
"""

from collections.abc import Iterator
from heapq import nsmallest
from typing import Literal

from agent.export.outcome import right
from agent.record.trajectory import AttemptRecord, Trajectory
from tools.errors import UsageError

Per = Literal["task", "target", "run"]  # `target`: a task on each GPU, or on each architecture where nothing is timed
Rank = tuple[int, float, tuple[float, ...], bool, float, str]
_TIERS = {"confirmed": 0, "judged": 1}
_SCREENED, _UNTIMED = 2, 3


class Champions:
    """The `top` attempts per task, target or run. `see` every trajectory before the first `chosen`."""

    def __init__(self, per: Per = "task", top: int = 1) -> None:
        if top < 1:
            raise UsageError(f"top={top}: at least one attempt must be wanted")
        self._per, self._top = per, top
        self._best: dict[str, list[Rank]] = {}

    def see(self, trajectory: Trajectory) -> None:
        """Remember who leads."""
        key = self._key(trajectory)
        known = self._best.get(key, [])
        if leaders := nsmallest(self._top, {*known, *_ranks(trajectory)}):
            self._best[key] = leaders

    def chosen(self, trajectory: Trajectory) -> Iterator[tuple[int, AttemptRecord]]:
        """Those of one run that are among the best, with their place from 1."""
        places = {rank[-1]: place for place, rank in enumerate(self._best.get(self._key(trajectory), []), 1)}
        for attempt in trajectory.attempts:
            if attempt.attempt_id in places:
                yield places[attempt.attempt_id], attempt

    def _key(self, trajectory: Trajectory) -> str:
        run = trajectory.run
        if self._per == "run":
            return run.run_id
        return run.task_sha256 if self._per == "task" else f"{run.task_sha256} {run.gpu or run.arch}"


def _ranks(trajectory: Trajectory) -> list[Rank]:
    best_id = trajectory.best.attempt_id if trajectory.best else None
    return [_rank(a, leads=a.attempt_id == best_id) for a in trajectory.attempts if right(a)]


def _rank(attempt: AttemptRecord, *, leads: bool) -> Rank:
    """Smaller is better."""
    if attempt.timing is None:
        return _UNTIMED, 0.0, attempt.rank_key or (float("inf"),), not leads, attempt.at, attempt.attempt_id
    tier = _TIERS.get(attempt.tier or "", _SCREENED)
    gain = -(attempt.speedup_low or 0.0)
    return tier, gain, (attempt.timing.median_us,), not leads, attempt.at, attempt.attempt_id
