"""Describe a task as data: shapes, dtypes and costs of every case, found without allocating its tensors.

`Problem` is one case with values. Runs the task file's code: for a trusted child process only.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tools.codec import Json
from tools.errors import TaskError
from tools.judge import flops
from tools.judge.execute import blame
from tools.judge.problem import Answer, Drawn, LoadedCase
from tools.judge.room import free_cached
from tools.judge.tree import Tree, is_finite, nbytes, numel, spec_of, tensor_spec
from tools.spec import CaseSpec, TaskSpec
from tools.task import MAIN, CaseDef, TaskFile, int_constants, visible_source

__all__ = ["Answer", "Drawn", "Problem", "describe", "expanded", "is_small"]

SMALL = "small"
SMALL_ELEMENTS = 2_000_000  # inputs, parameters and outputs of a case for the interpreter
SMALL_FLOPS = 2_000_000_000
_SMALLEST = 8  # constants below are kernel sizes, heads, flags
_MOST_HALVINGS = 96


class Problem(LoadedCase):
    """One case of a task, found by name: its inputs, parameters and answers."""

    @classmethod
    def load(
        cls,
        task: TaskFile,
        case_name: str = MAIN,
        *,
        seed: int = 0,
        device: str = "cpu",
        make_room: Callable[[], None] = free_cached,
    ) -> "Problem":
        """Run the task file with the case's constants and build its model. Raises TaskError."""
        if case_name == SMALL and all(case.name != SMALL for case in task.cases):
            task = expanded(task)
        problem = cls(task, task.case(case_name), device, make_room)
        problem.reseed(seed)
        return problem


def describe(task: TaskFile) -> TaskSpec:
    """Shapes, dtypes and costs of all cases. Raises TaskError when the reference does not run."""
    task = expanded(task)
    return TaskSpec(
        name=task.name,
        sha256=task.sha256,
        precision=task.precision or _precision(task),
        source=visible_source(task),
        cases=tuple(_described(task, case) for case in task.cases),
        notes=task.notes,
    )


def expanded(task: TaskFile) -> TaskFile:
    """The task with a further case "small" when its file lists no CASES and its own sizes are too large for a CPU."""
    if task.declared or any(case.name == SMALL for case in task.cases) or is_small(task, MAIN):
        return task
    overrides = _scaled_down(task)
    if overrides is None:
        return task
    small = CaseDef(SMALL, tuple(overrides.items()), cpu=True)
    larger = dataclasses.replace(task, cases=(*task.cases, small))
    return larger if _runs(larger) else task


def is_small(task: TaskFile, case_name: str) -> bool:
    """Whether a case fits the CPU interpreter."""
    return _Size.of(task, task.case(case_name)).is_small


def _precision(task: TaskFile) -> str:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return Problem.load(task).precision


@dataclasses.dataclass(frozen=True)
class _Size:
    """What one case holds and costs. The trees hold tensors without data."""

    init_args: tuple[Any, ...]
    inputs: tuple[Any, ...]
    state: dict[str, torch.Tensor]
    outputs: Tree
    flops: int

    @classmethod
    def of(cls, task: TaskFile, case: CaseDef) -> "_Size":
        """Measure without allocating; with real tensors where the reference needs values."""
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                return cls._measured(LoadedCase(task, case))
        except TaskError:
            return cls._measured(LoadedCase(task, case))

    @classmethod
    def _measured(cls, problem: LoadedCase) -> "_Size":
        inputs = problem.inputs(0) or ()
        logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # we report what fails
        with flops.counter() as counted:
            outputs = problem.native(inputs)
        return cls(problem.init_args, inputs, problem.state(), outputs, int(counted.get_total_flops()))

    @property
    def cost(self) -> tuple[int, int]:
        """Smaller is smaller."""
        return self.elements, self.flops

    @property
    def elements(self) -> int:
        """Elements of all inputs, parameters and outputs."""
        return numel((self.inputs, self.state, self.outputs))

    @property
    def is_small(self) -> bool:
        """Whether the interpreter can replay it in seconds."""
        return self.elements <= SMALL_ELEMENTS and self.flops <= SMALL_FLOPS


def _described(task: TaskFile, case: CaseDef) -> CaseSpec:
    size = _Size.of(task, case)
    with blame(task, "describing"):
        init_args, inputs, outputs = (spec_of(part) for part in (list(size.init_args), list(size.inputs), size.outputs))
    return CaseSpec(
        name=case.name,
        inputs=tuple(inputs),
        init_args=tuple(init_args),
        outputs=outputs,
        state={name: tensor_spec(tensor) for name, tensor in size.state.items()},
        bytes_moved=nbytes((size.inputs, size.state, size.outputs)),
        flops=size.flops,
        held_out=case.held_out,
        runs_on_cpu=case.cpu or size.is_small,
    )


_Place = tuple[str, int]  # the name of a constant, and the index into it when it is a tuple (else 0)


def _scaled_down(task: TaskFile) -> dict[str, Json] | None:
    """Overrides that make the file's own case small: halve the largest constant that matters until it fits."""
    constants: dict[str, Any] = dict(int_constants(task.source))
    overrides: dict[str, Json] = {}
    size = _try(task, overrides)
    stuck: set[_Place] = set()
    for _ in range(_MOST_HALVINGS):
        if size is None or size.is_small:
            break
        places = _largest(constants | overrides, stuck)
        smaller = None
        for chosen in (places[:1], places) if places else ():  # alone, or with all constants of its value
            attempt = overrides | _halved(constants | overrides, chosen)
            if (smaller := _try(task, attempt)) is not None and smaller.cost < size.cost:
                overrides, size = attempt, smaller
                break
        else:
            stuck |= set(places[:1])  # another constant depends on it, or nothing does
        if not places:
            return None
    return overrides if size is not None and size.is_small else None


def _try(task: TaskFile, overrides: Mapping[str, Json]) -> _Size | None:
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _Size._measured(LoadedCase(task, CaseDef(SMALL, tuple(overrides.items()))))
    except TaskError:
        return None


def _largest(constants: Mapping[str, Any], stuck: set[_Place]) -> list[_Place]:
    """Where the largest constant is that still may be halved; several places when several have its value."""
    found = [
        (item, (name, index))
        for name, value in constants.items()
        for index, item in enumerate(value if isinstance(value, tuple) else (value,))
        if item > _SMALLEST
    ]
    largest = max((item for item, place in found if place not in stuck), default=0)
    same = [place for item, place in found if item == largest]
    return sorted(same, key=lambda place: place in stuck)


def _halved(constants: Mapping[str, Any], places: Sequence[_Place]) -> dict[str, Json]:
    """New values for the constants at these places."""
    new = {name: constants[name] for name, _ in places}
    for name, index in places:
        value = new[name]
        new[name] = (
            (*value[:index], _half(value[index]), *value[index + 1 :]) if isinstance(value, tuple) else _half(value)
        )
    return new


def _half(value: int) -> int:
    """Half of an even number; of an odd one, the next power of two below, which divides better than its half."""
    return value // 2 if value % 2 == 0 else 1 << (value.bit_length() - 1)


def _runs(task: TaskFile) -> bool:
    """Whether the small case runs with values, and gives finite ones."""
    try:
        problem = Problem.load(task, SMALL)
        return is_finite(problem.native(problem.inputs(0) or ()))
    except TaskError:
        return False
