"""`convert`: a PyTorch module and the Triton file that does the same, in the columns of KernelBook.

The other directions (Triton to PTX and back) need PTX, and the record has none: of a kernel it keeps the source, the
TTIR and the hash of its cubin. `direction` is there for the day when it has.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from agent.export.base import Column, Format, Made, Row
from agent.export.champions import Champions
from agent.export.outcome import right
from agent.export.reference import ENTRY_POINT, repo_name, stable_uuid
from agent.export.told import visible
from agent.record.events import RunStarted
from agent.record.trajectory import AttemptRecord, Trajectory

PYTORCH_TO_TRITON = "pytorch_to_triton"


@dataclass
class Convert(Format):
    """`which`: every right attempt, or the best of each task over all runs."""

    which: Literal["all", "best"] = "all"

    name: ClassVar[str] = "convert"
    about: ClassVar[str] = "PyTorch to Triton: pairs in KernelBook's columns"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("python_code", "text", "the task's file: class Model, get_inputs, get_init_inputs"),
        Column("triton_code", "text", "an accepted attempt's file: class ModelNew"),
        Column("direction", "text", "what is turned into what: pytorch_to_triton"),
        Column("entry_point", "text", "the module in python_code; in triton_code it is called <entry_point>New"),
        Column("module_name", "text", "the task's name"),
        Column("uuid", "text", "of the pair of texts: the same pair has the same one in every export"),
        Column("repo_name", "text", "kerneltune for tasks that ship with it; else empty"),
    )
    surveys: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._champions = Champions() if self.which == "best" else None

    def survey(self, trajectory: Trajectory) -> None:
        """Remember who leads each task, if only the best are wanted."""
        if self._champions is not None:
            self._champions.see(trajectory)

    def rows(self, trajectory: Trajectory) -> Iterator[Made]:
        """A row for each right attempt, or for those that are the best of their task."""
        python_code = visible(trajectory.run.task_source)
        for attempt in self._wanted(trajectory) if python_code else ():
            yield Made(_pair(trajectory.run, python_code, attempt.source), attempt)

    def _wanted(self, trajectory: Trajectory) -> Iterator[AttemptRecord]:
        if self._champions is not None:
            return (attempt for _, attempt in self._champions.chosen(trajectory))
        return filter(right, trajectory.attempts)


def _pair(run: RunStarted, python_code: str, triton_code: str) -> Row:
    return {
        "python_code": python_code,
        "triton_code": triton_code,
        "direction": PYTORCH_TO_TRITON,
        "entry_point": ENTRY_POINT,
        "module_name": run.task,
        "uuid": stable_uuid(python_code, triton_code),
        "repo_name": repo_name(run),
    }
