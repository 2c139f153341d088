"""Pairs of attempts of one run of which one is known to be better: it is right and the other is not, or it is faster.

Faster is only what was timed on the same GPU with intervals that do not overlap. What is unknown makes no pair. Each
attempt is the worse one of at most one pair of a kind, so the work grows as the attempts do. It is paired with its
nearest right descendant, its fastest child or its parent where that is the better one (they differ by what was
changed), else with one drawn at random. Reads no texts.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from agent.export.lineage import Lineage
from agent.export.outcome import fails, right
from agent.record.trajectory import AttemptRecord, Trajectory

By = Literal["right", "faster"]


@dataclass(frozen=True)
class Preference:
    """`related`: one was derived from the other. `margin`: of two times, how much faster the better one is at least."""

    by: By
    better: AttemptRecord
    worse: AttemptRecord
    related: bool
    margin: float | None = None


def preferences(trajectory: Trajectory, seed: int, least_margin: float = 1.0) -> list[Preference]:
    """All pairs of a run that can be told, the same for the same seed."""
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
