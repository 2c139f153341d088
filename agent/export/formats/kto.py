"""`kto`: one answer to a task, and whether it is a good one (TRL KTO)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from agent.export import instructions
from agent.export.base import Column, Format, Made
from agent.export.outcome import fails, right
from agent.record.trajectory import AttemptRecord, Trajectory
from tools.errors import UsageError


@dataclass
class Kto(Format):
    """Good is right; with `least_speedup`, right and that many times as fast as the fastest baseline, by the lower end
    of the interval. What is not known makes no row."""

    least_speedup: float | None = None

    name: ClassVar[str] = "kto"
    about: ClassVar[str] = "single answers labelled good or bad (TRL KTO)"
    columns: ClassVar[tuple[Column, ...]] = (
        instructions.ASKED,
        instructions.ANSWERED,
        Column("label", "bool", "true for a good answer"),
    )

    def __post_init__(self) -> None:
        if self.least_speedup is not None and not self.least_speedup > 0.0:
            raise UsageError(f"least_speedup={self.least_speedup}: it is above 0, such as 1.0")

    def rows(self, trajectory: Trajectory) -> Iterator[Made]:
        """A row for each attempt that is known to be good or bad."""
        for attempt in trajectory.attempts:
            label = self._label(attempt)
            if label is not None:
                prompt, completion = instructions.solve(trajectory.run), instructions.answer(attempt.source)
                yield Made({"prompt": prompt, "completion": completion, "label": label}, attempt)

    def _label(self, attempt: AttemptRecord) -> bool | None:
        if fails(attempt):
            return False
        if not right(attempt):
            return None
        if self.least_speedup is None:
            return True
        return None if attempt.speedup_low is None else attempt.speedup_low >= self.least_speedup
