"""`fix`: an attempt that fails, what its author was told, and what it became."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from agent.export import instructions
from agent.export.base import Column, Format, Made
from agent.export.lineage import Lineage, Reached
from agent.export.outcome import fails, stage
from agent.export.patch import unified
from agent.export.told import told
from agent.record.trajectory import AttemptRecord, Trajectory
from tools.errors import UsageError


@dataclass
class Fix(Format):
    """`progress`: where nothing right came of an attempt, take the nearest that got further (from a compile error to a
    wrong answer); `most_hops`: how many derivations may lie between."""

    progress: bool = False
    most_hops: int | None = None

    name: ClassVar[str] = "fix"
    about: ClassVar[str] = "a failing attempt with its error, and the nearest descendant that is right"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("prompt", "structs", "system and user: the task, the failing file, the error", instructions.MESSAGE),
        Column(
            "completion", "structs", "one assistant message: the repaired file in a block of code", instructions.MESSAGE
        ),
        Column("broken", "text", "the failing attempt's file"),
        Column("error", "text", "what its author was told, at most 2,000 characters"),
        Column("fixed", "text", "the descendant's file"),
        Column("diff", "text", "unified diff from broken to fixed"),
        Column("hops", "int", "derivations between the two; 1 for a child"),
        Column("status_before", "text", "verdict on broken"),
        Column("status_after", "text", "verdict on fixed"),
        Column("broken_attempt", "text", "id of the failing attempt; provenance is that of fixed"),
    )

    def __post_init__(self) -> None:
        if self.most_hops is not None and self.most_hops < 1:
            raise UsageError(f"most_hops={self.most_hops}: at least 1 derivation lies between an attempt and its child")

    def rows(self, trajectory: Trajectory) -> Iterator[Made]:
        """A row for each failing attempt that something came of."""
        lineage = Lineage(trajectory.attempts)
        for attempt in trajectory.attempts:
            found = self._repaired(lineage, attempt) if fails(attempt) else None
            if found is not None and found.attempt.source != attempt.source:
                yield _row(trajectory, attempt, found)

    def _repaired(self, lineage: Lineage, attempt: AttemptRecord) -> Reached | None:
        found = lineage.nearest(attempt)
        if self.progress and not self._near(found):
            found = lineage.nearest(attempt, (stage(attempt) or 0) + 1)
        return found if self._near(found) else None

    def _near(self, found: Reached | None) -> bool:
        return found is not None and (self.most_hops is None or found.hops <= self.most_hops)


def _row(trajectory: Trajectory, broken: AttemptRecord, found: Reached) -> Made:
    fixed, error = found.attempt, told(trajectory.run, broken)
    before, after = str(broken.status), str(fixed.status)
    values = {
        "prompt": instructions.fix(trajectory.run, broken.source, before, error),
        "completion": instructions.answer(fixed.source),
        "broken": broken.source,
        "error": error,
        "fixed": fixed.source,
        "diff": unified(broken.source, fixed.source),
        "hops": found.hops,
        "status_before": before,
        "status_after": after,
        "broken_attempt": broken.attempt_id,
    }
    return Made(values, fixed)
