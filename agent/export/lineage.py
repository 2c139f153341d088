"""Which attempt came of which, within one run: the nearest descendant that got further."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.export.outcome import RIGHT, stage
from agent.record.trajectory import AttemptRecord


@dataclass(frozen=True)
class Reached:
    """An attempt that got as far as was asked, and how many steps of derivation lie between."""

    attempt: AttemptRecord
    hops: int


class Lineage:
    """Made in one pass over the attempts of a run, from the newest to the oldest: a child is newer than its parent. A
    parent of another run, or one that is newer than its child, is none."""

    def __init__(self, attempts: Sequence[AttemptRecord]) -> None:
        self._by_id = {a.attempt_id: a for a in attempts}
        self._nearest: dict[str, list[Reached | None]] = {a.attempt_id: [None] * (RIGHT + 1) for a in attempts}
        for attempt in sorted(attempts, key=lambda a: a.number, reverse=True):
            parent = self.parent(attempt)
            if parent is not None:
                self._tell(self._nearest[parent.attempt_id], attempt)

    def parent(self, attempt: AttemptRecord) -> AttemptRecord | None:
        """What an attempt was derived from."""
        found = self._by_id.get(attempt.parent_id or "")
        return found if found is not None and found.number < attempt.number else None

    def nearest(self, attempt: AttemptRecord, least: int = RIGHT) -> Reached | None:
        """The descendant in the fewest steps, the earliest among equals, that got to the stage `least` at least."""
        return self._nearest[attempt.attempt_id][least]

    def _tell(self, known: list[Reached | None], child: AttemptRecord) -> None:
        """What a parent may reach through one child. Children come newest first, so that on a tie the older counts."""
        how_far = stage(child)
        for least in range(RIGHT + 1):
            further = self._nearest[child.attempt_id][least]
            if how_far is not None and how_far >= least:
                found: Reached | None = Reached(child, 1)
            else:
                found = Reached(further.attempt, further.hops + 1) if further else None
            before = known[least]
            if found is not None and (before is None or found.hops <= before.hops):
                known[least] = found
