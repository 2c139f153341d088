"""Is a task able to tell a kernel from nothing? Null kernels must fail every case of it with every battery.

A task that a null kernel passes is broken (all zeros pass KernelBench's own softmax check), and no verdict on it
means anything.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tools.errors import TaskError
from tools.judge.batteries import BATTERIES, CORE
from tools.judge.compare import as_rows, compare
from tools.judge.reference import Problem, expanded, is_small
from tools.judge.sensitivity import sensitivities
from tools.judge.tree import Tree, is_finite, map_tensors, tensors
from tools.spec import TaskSpec
from tools.task import TaskFile


@dataclass(frozen=True)
class AdmissionResult:
    """What became of one null kernel. `refused` is as it should be; `error_ratio` > 1 by how much it failed."""

    case: str
    battery: str
    null_kernel: str
    refused: bool
    error_ratio: float


def unsound(results: list[AdmissionResult]) -> list[str]:
    """Cases that a null kernel passes with every battery, as "case: null kernel"; empty for a sound task. One battery
    that refuses it is enough: a candidate has to pass them all."""
    refused = {(r.case, r.null_kernel) for r in results if r.refused}
    tried = dict.fromkeys((r.case, r.null_kernel) for r in results)
    return [f"{case}: {name}" for case, name in tried if (case, name) not in refused]


def admit(task: TaskFile, *, device: str = "cpu") -> list[AdmissionResult]:
    """Try the null kernels on every case that fits the device. The task is sound when all are refused."""
    task = expanded(task)
    cases = [case for case in task.cases if device != "cpu" or case.cpu or is_small(task, case.name)]
    return [result for case in cases for result in _case(Problem.load(task, case.name, device=device))]


_MEANING = {
    "zeros": "writes zeros",
    "ones": "writes ones",
    "mean": "writes the mean of the answer",
    "row_means": "writes the mean of each row",
    "last_tile_zero": "leaves the end of each row zero",
    "first_input": "copies its first input",
    "previous_answer": "returns the answer to other inputs",
    "rounded_to_bfloat16": "rounds its result to bfloat16",
}


def warnings_of(task: TaskFile, spec: TaskSpec) -> list[str]:
    """What a person should know before trusting verdicts on a task, from its cheapest visible case that a CPU can run,
    in a second or so; empty for a sound task, and for one that cannot be looked at here."""
    visible = [c for c in spec.cases if c.runs_on_cpu and not c.held_out]
    if not visible:
        return []
    case = min(visible, key=lambda c: (c.bytes_moved + c.flops, c.name)).name
    try:
        problem = Problem.load(task, case)
        results = list(_case(problem, ("own",)))
        if unsound(results):  # the other batteries may still catch it
            results += _case(problem, CORE[1:])
        dead = [s.operand for s in sensitivities(problem) if s.dead]
    except TaskError as error:
        return [f"the task could not be examined: {error}"]
    names = [entry.partition(": ")[2] for entry in unsound(results)]
    more = f" (and {len(names) - 1} other null kernels)" if len(names) > 1 else ""
    notes = [f"a kernel that {_MEANING[name]} passes case {case} with all inputs{more}" for name in names[:1]]
    if dead:
        notes.append(f"a kernel may leave out {', '.join(dead)}: case {case} does not depend on it")
    return [f"{note}; verdicts mean little" for note in notes]


def _case(problem: Problem, batteries: Sequence[str] = BATTERIES) -> Iterator[AdmissionResult]:
    for battery in batteries:
        drawn, before = problem.draw(1, battery), problem.draw(2, battery)
        if drawn is None or before is None:
            continue
        problem.restore(before)
        previous = problem.native(before.inputs)
        problem.restore(drawn)
        expected = problem.expect(drawn.inputs)
        for name, output in null_outputs(drawn.inputs, expected.native, previous, precision=problem.precision):
            result = compare(expected, output)
            yield AdmissionResult(problem.case.name, battery, name, not result.ok, result.error_ratio)


def null_outputs(inputs: Tree, right: Tree, previous: Tree, *, precision: str) -> Iterator[tuple[str, Tree]]:
    """Outputs that need no kernel, by name, from the inputs, the right answer and the answer to other inputs.

    What equals the right answer by its size alone (the mean of one element) is left out.
    """
    yield "zeros", map_tensors(torch.zeros_like, right)
    yield "ones", map_tensors(torch.ones_like, right)
    if all(t.numel() > 1 for t in tensors(right)):
        yield "mean", map_tensors(_mean, right)
        yield "row_means", map_tensors(_row_means, right)
        yield "last_tile_zero", map_tensors(_last_tile_zero, right)
    copied = map_tensors(functools.partial(_copied, source=next(tensors(inputs), None)), right)
    if copied is not None:
        yield "first_input", copied
    yield "previous_answer", previous
    wide = [t for t in tensors(right) if t.dtype == torch.float32]
    if precision == "float32" and wide and is_finite(right):
        yield "rounded_to_bfloat16", map_tensors(_rounded, right)


def _mean(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor.double(), float(tensor.double().mean())).to(tensor.dtype)


def _row_means(tensor: Tensor) -> Tensor:
    rows = as_rows(tensor.double())
    return rows.mean(dim=1, keepdim=True).expand_as(rows).reshape(tensor.shape).to(tensor.dtype)


def _last_tile_zero(tensor: Tensor) -> Tensor:
    """The last eighth of the last dimension, in all rows."""
    result = tensor.clone()
    result[..., -max(1, math.ceil(tensor.shape[-1] / 8)) :] = 0
    return result


def _copied(tensor: Tensor, source: Tensor | None) -> Tensor:
    """The first input in the output's shape: broadcast when it fits, else its first elements, repeated."""
    if source is None or source.numel() == 0:
        return torch.zeros_like(tensor)
    flat = source.flatten()
    repeats = -(-tensor.numel() // flat.numel())
    return flat.repeat(repeats)[: tensor.numel()].reshape(tensor.shape).to(tensor.dtype)


def _rounded(tensor: Tensor) -> Tensor:
    return tensor.to(torch.bfloat16).to(tensor.dtype) if tensor.is_floating_point() else tensor
