"""`convert`: a PyTorch module and the Triton file that does the same, in the columns of KernelBook; and Triton and the
PTX that was made of it, both ways, where both are right and one was derived from the other in one run.
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
from tools.ptx.loader import language_of, ptx_texts

PYTORCH_TO_TRITON, TRITON_TO_PTX, PTX_TO_TRITON = "pytorch_to_triton", "triton_to_ptx", "ptx_to_triton"


@dataclass
class Convert(Format):
    """`which`: every right attempt, or the best of each task over all runs."""

    which: Literal["all", "best"] = "all"

    name: ClassVar[str] = "convert"
    about: ClassVar[str] = "PyTorch to Triton, Triton to PTX and back: pairs in KernelBook's columns"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("python_code", "text", "the task's file: class Model, get_inputs, get_init_inputs"),
        Column("triton_code", "text", "an accepted attempt's file: class ModelNew"),
        Column(
            "ptx_code", "text", "the PTX of an accepted attempt's kernels; empty where PyTorch is turned into Triton"
        ),
        Column("direction", "text", "what is turned into what: pytorch_to_triton, triton_to_ptx, ptx_to_triton"),
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
        """A row for each right attempt, or for those that are the best of their task; two for one in PTX."""
        python_code = visible(trajectory.run.task_source)
        for attempt in self._wanted(trajectory) if python_code else ():
            if language_of(attempt.source) == "triton":
                yield Made(_pair(trajectory.run, PYTORCH_TO_TRITON, python_code, attempt.source), attempt)
            elif (origin := _triton_of(trajectory, attempt)) and (ptx := "\n".join(ptx_texts(attempt.source))):
                for direction in (TRITON_TO_PTX, PTX_TO_TRITON):
                    yield Made(_pair(trajectory.run, direction, python_code, origin.source, ptx), attempt)

    def _wanted(self, trajectory: Trajectory) -> Iterator[AttemptRecord]:
        if self._champions is not None:
            return (attempt for _, attempt in self._champions.chosen(trajectory))
        return filter(right, trajectory.attempts)


def _triton_of(trajectory: Trajectory, attempt: AttemptRecord) -> AttemptRecord | None:
    """The nearest right attempt in Triton that one in PTX was derived from."""
    seen = {attempt.attempt_id}
    origin = trajectory.parent(attempt)
    while origin is not None and origin.attempt_id not in seen:
        if right(origin) and language_of(origin.source) == "triton":
            return origin
        seen.add(origin.attempt_id)
        origin = trajectory.parent(origin)
    return None


def _pair(run: RunStarted, direction: str, python_code: str, triton_code: str, ptx_code: str = "") -> Row:
    texts = (python_code, triton_code) if direction == PYTORCH_TO_TRITON else (triton_code, ptx_code, direction)
    return {
        "python_code": python_code,
        "triton_code": triton_code,
        "ptx_code": ptx_code,
        "direction": direction,
        "entry_point": ENTRY_POINT,
        "module_name": run.task,
        "uuid": stable_uuid(*texts),
        "repo_name": repo_name(run),
    }
