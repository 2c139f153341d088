"""`dpo`: two answers to one task, of which the first is known to be better (TRL DPO)."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Literal

from agent.export import instructions
from agent.export.base import Column, Format, Made
from agent.export.preferences import Preference, preferences
from agent.export.quota import Quota
from agent.record.trajectory import Trajectory
from tools.errors import UsageError


@dataclass
class Dpo(Format):
    """Both answers are of one run: the same task, the same machine. `over`: which pairs; `per_run` and `per_task`: how
    many at most; `least_margin`: how many times faster a faster one must be; the same `seed` makes the same pairs."""

    over: Literal["both", "right", "faster"] = "both"
    per_run: int = 16
    per_task: int = 256
    least_margin: float = 1.0
    seed: int = 0

    name: ClassVar[str] = "dpo"
    about: ClassVar[str] = "preference pairs: right over failing, faster over slower (TRL DPO)"
    columns: ClassVar[tuple[Column, ...]] = (
        instructions.ASKED,
        Column("chosen", "structs", "one assistant message: the better kernel's file", instructions.MESSAGE),
        Column("rejected", "structs", "one assistant message: the worse kernel's file", instructions.MESSAGE),
        Column("better_by", "text", "right: chosen is right and rejected is not; faster: both are right and timed"),
        Column(
            "margin",
            "float",
            "times faster at least: low end of rejected's time / high end of chosen's; null if untimed",
        ),
        Column("related", "bool", "whether one was derived from the other, so that they differ by what was changed"),
        Column("rejected_status", "text", "verdict on rejected"),
        Column("rejected_attempt", "text", "id of the rejected attempt; provenance is that of chosen"),
    )
    surveys: ClassVar[bool] = True
    whole_runs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.least_margin >= 1.0:
            raise UsageError(f"least_margin={self.least_margin}: it is at least 1, where intervals just do not overlap")
        self._quota = Quota(self.per_run, self.per_task)

    def survey(self, trajectory: Trajectory) -> None:
        """Count the pairs of each run, so that the runs of a task share what it may have."""
        self._quota.count(trajectory.run.task_sha256, trajectory.run.run_id, len(self._pairs(trajectory)))

    def rows(self, trajectory: Trajectory) -> Iterator[Made]:
        """A row for each pair of this run, up to its share."""
        run, pairs = trajectory.run, [p for p in self._pairs(trajectory) if p.better.source != p.worse.source]
        share = self._quota.share(run.task_sha256, run.run_id, len(pairs))
        for pair in _drawn(pairs, share, Random(f"{self.seed} {run.run_id} share")):
            values = {
                "prompt": instructions.solve(run),
                "chosen": instructions.answer(pair.better.source),
                "rejected": instructions.answer(pair.worse.source),
                "better_by": pair.by,
                "margin": pair.margin,
                "related": pair.related,
                "rejected_status": str(pair.worse.status),
                "rejected_attempt": pair.worse.attempt_id,
            }
            yield Made(values, pair.better)

    def _pairs(self, trajectory: Trajectory) -> list[Preference]:
        found = preferences(trajectory, self.seed, self.least_margin)
        return found if self.over == "both" else [pair for pair in found if pair.by == self.over]


def _drawn(pairs: list[Preference], share: int, rng: Random) -> list[Preference]:
    """Those of related attempts first, the others at random; in the order of the run."""
    if len(pairs) <= share:
        return pairs
    order = sorted(range(len(pairs)), key=lambda i: (not pairs[i].related, rng.random()))
    return [pairs[i] for i in sorted(order[:share])]
