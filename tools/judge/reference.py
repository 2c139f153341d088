"""Describe a task as data: shapes, dtypes and costs of every case, found without allocating its tensors.

`Problem` (one case with values) lives beside it. Runs the task file's code: for a trusted child process only.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from tools.codec import Json
from tools.errors import TaskError
from tools.judge.problem import Answer, Drawn, Problem
from tools.judge.tree import Tree, is_finite, nbytes, numel, spec_of, tensor_spec
from tools.spec import CaseSpec, TaskSpec
from tools.task import MAIN, CaseDef, TaskFile, int_constants, visible_source

__all__ = ["Answer", "Drawn", "Problem", "describe", "expanded", "is_small"]

SMALL = "small"
SMALL_ELEMENTS = 2_000_000  # inputs, parameters and outputs of a case for the interpreter
SMALL_FLOPS = 2_000_000_000
_SMALLEST = 8  # constants below are kernel sizes, heads, flags
_MOST_HALVINGS = 96


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
                return cls._measured(Problem(task, case, "cpu"))
        except TaskError:
            return cls._measured(Problem(task, case, "cpu"))

    @classmethod
    def _measured(cls, problem: Problem) -> "_Size":
        inputs = problem.inputs(0) or ()
        with FlopCounterMode(display=False, custom_mapping=_CAUSAL) as counter:
            outputs = problem.native(inputs)
        return cls(problem.init_args, inputs, problem.state(), outputs, int(counter.get_total_flops()))

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
    return CaseSpec(
        name=case.name,
        inputs=tuple(spec_of(value) for value in size.inputs),
        init_args=tuple(spec_of(value) for value in size.init_args),
        outputs=spec_of(size.outputs),
        state={name: tensor_spec(tensor) for name, tensor in size.state.items()},
        bytes_moved=nbytes((size.inputs, size.state, size.outputs)),
        flops=size.flops,
        held_out=case.held_out,
        runs_on_cpu=case.cpu or size.is_small,
    )


def _scaled_down(task: TaskFile) -> dict[str, Json] | None:
    """Overrides that make the file's own case small: halve the largest constant that matters until it fits."""
    constants: dict[str, Any] = dict(int_constants(task.source))
    overrides: dict[str, Json] = {}
    size = _try(task, overrides)
    frozen: set[tuple[str, int]] = set()
    for _ in range(_MOST_HALVINGS):
        if size is None or size.is_small:
            break
        largest = _largest(constants | overrides, frozen)
        if largest is None:
            return None
        attempt = overrides | {largest[0]: _halved(constants | overrides, *largest)}
        smaller = _try(task, attempt)
        if smaller is None or (smaller.elements, smaller.flops) >= (size.elements, size.flops):
            frozen.add(largest)  # another constant depends on it, or nothing does
        else:
            overrides, size = attempt, smaller
    return overrides if size is not None and size.is_small else None


def _try(task: TaskFile, overrides: Mapping[str, Json]) -> _Size | None:
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _Size._measured(Problem(task, CaseDef(SMALL, tuple(overrides.items())), "cpu"))
    except TaskError:
        return None


def _largest(constants: Mapping[str, Any], frozen: set[tuple[str, int]]) -> tuple[str, int] | None:
    """Name and index of the largest constant left; index 0 for a plain int."""
    found = [
        (item, name, index)
        for name, value in constants.items()
        for index, item in enumerate(value if isinstance(value, tuple) else (value,))
        if item > _SMALLEST and (name, index) not in frozen
    ]
    return max(found, key=lambda f: f[0])[1:] if found else None


def _halved(constants: Mapping[str, Any], name: str, index: int) -> Json:
    value = constants[name]
    if not isinstance(value, tuple):
        return _half(value)
    return tuple(_half(item) if at == index else item for at, item in enumerate(value))


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


def _attention_flops(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Multiply-adds of attention; a causal mask leaves out what lies above the diagonal."""
    (batch, heads, rows, depth), columns = query, key[-2]
    causal = kwargs.get("is_causal", any(a is True for a in args[:3]))
    seen = sum(min(row + 1, columns) for row in range(rows)) if causal else rows * columns
    return int(2 * batch * heads * seen * (depth + value[-1]))


_CAUSAL = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
}
