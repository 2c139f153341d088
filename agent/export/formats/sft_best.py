"""`sft-best`: the best kernels of each task, as prompt and completion (TRL)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from agent.export import instructions
from agent.export.base import Column, Format, Made
from agent.export.champions import Champions, Per
from agent.record.trajectory import Trajectory


@dataclass
class SftBest(Format):
    """`per`: the best of each task over all runs, of each task on each GPU, or of each run; `top`: how many.
    Where nothing was timed, the place rests on bytes, spills, occupancy and registers; the row's `timed` is false."""

    per: Per = "task"
    top: int = 1

    name: ClassVar[str] = "sft-best"
    about: ClassVar[str] = "prompt and completion: the best kernel of each task (TRL SFT)"
    columns: ClassVar[tuple[Column, ...]] = (
        instructions.ASKED,
        instructions.ANSWERED,
        Column("place", "int", "1 for the best of its task (or GPU, or run), 2 for the next, …"),
    )
    surveys: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._champions = Champions(self.per, self.top)

    def survey(self, trajectory: Trajectory) -> None:
        """Remember who leads each task."""
        self._champions.see(trajectory)

    def rows(self, trajectory: Trajectory) -> Iterator[Made]:
        """A row for each attempt of this run that is among the best."""
        for place, attempt in self._champions.chosen(trajectory):
            values = {
                "prompt": instructions.solve(trajectory.run),
                "completion": instructions.answer(attempt.source),
                "place": place,
            }
            yield Made(values, attempt)
