"""Is a task able to tell a kernel from nothing, does its answer depend on every operand, can a GPU hold it?

Null kernels must fail every case of it with every battery. A task that a null kernel passes is broken (all zeros pass
KernelBench's own softmax check), and no verdict on it means anything.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from kerneltune.tools.judge.correctness.comparison import compare
from kerneltune.tools.judge.correctness.gates import Expected, as_rows
from kerneltune.tools.judge.correctness.problem import Problem
from kerneltune.tools.judge.correctness.reference_model import Drawn
from kerneltune.tools.judge.correctness.tree import (
    Tree,
    is_finite,
    leaves,
    map_leaves,
    map_tensors,
    stored_as,
    tensors,
)
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.schema.task import BATTERIES, CORE, TaskSpec
from kerneltune.tools.task.load import TaskFile

_GB = 1e9
_LEAST_HELD = 2  # times a case's inputs, parameters and outputs: what is timed, and the reference run on a copy of it
_FEW = 12  # operands that are looked at one by one: gradients and what checks them take as long as ten runs
_ROWS = 4  # of an answer, beside the largest: a gradient each, which takes as long as one run
_STEP = 10  # a tenth of a row's size is wrong in any format, and overflows in none
_CLEARLY, _HARDLY = 3, 0.05  # times what is wrong, to first order; between them a run each
_FAR_BELOW = 0.5  # of the tolerance: several operands that move an answer by more are moved apart
_CONTEXTS_BYTES = 1 << 30  # the driver itself, in the judge and in the runner


def operands_that_matter(problem: Problem) -> dict[str, bool]:
    """Whether the answer depends on each operand ("input:0", "state:weight"): where it does not, quite other values of
    it are within the tolerance. On the task's own inputs; empty when it gives none.

    A run for each of a U-Net's 119 took 13 s of a processor, now 3; of EfficientNet-B1's 118, half of which are lost in
    the tolerance, 34 and now 14. Of many operands, gradients tell those that clearly matter, and those that hardly can
    are moved together, and apart only where that shows.
    """
    drawn = problem.draw(seed=1)
    if drawn is None:
        return {}
    expected = replace(problem.expect(drawn.inputs), kept={})  # many answers are compared with it
    other = problem.inputs(drawn.seed + 1) or ()
    operands = dict(_operands(drawn))

    def moved(name: str, number: int = 0) -> Tensor:
        """Other values, unlike those of operands of another number: two of one shape might cancel each other."""
        generator = Generator(operands[name].device).manual_seed(drawn.seed + number)
        return _other(name, operands[name], other, generator)

    sizes = _sizes(problem, drawn, expected, moved) if len(operands) > _FEW else {}
    found = {name: True for name in operands if sizes.get(name, 1.0) >= _CLEARLY}
    hardly = [name for name in operands if sizes.get(name, 1.0) < _HARDLY]
    groups = [[name] for name in operands if name not in found and name not in hardly] + ([hardly] if hardly else [])
    while groups:
        group = groups.pop()
        answer = _moved(problem, drawn, {n: moved(n, i) for i, n in enumerate(group)}, expected.native)
        result = None if answer is None else compare(expected, answer)
        if result and result.ok and (len(group) == 1 or result.error_ratio <= _FAR_BELOW):
            found |= dict.fromkeys(group, False)
        elif len(group) > 1:
            groups += [group[: len(group) // 2], group[len(group) // 2 :]]
        elif result:  # else outside of what the reference is defined for
            found[group[0]] = True
    return {name: found[name] for name in operands if name in found}


def _sizes(problem: Problem, drawn: Drawn, expected: Expected, moved: Callable[[str], Tensor]) -> dict[str, float]:
    """By how much each operand's move changes the answer: to first order, in the row of some where that is most, root
    mean square, in units of what is wrong there, or of what the gradients miss a difference of two runs by. Empty where
    the reference has no gradient."""
    values = [*tensors(expected.values)]
    at = next((number for number, t in enumerate(values) if t.is_floating_point() and t.numel()), None)
    if at is None:
        return {}
    rows, generator = as_rows(values[at]), Generator().manual_seed(drawn.seed)
    size = torch.linalg.vector_norm(torch.nan_to_num(rows, 0.0, 0.0, 0.0), dim=1) / math.sqrt(rows.shape[1])
    # the largest, and others: a layer whose output is joined to others reaches some alone
    looked_at = dict.fromkeys([int(size.argmax()), *torch.randperm(len(rows), generator=generator).tolist()[:_ROWS]])
    signs = torch.randint(0, 2, (len(looked_at), rows.shape[1]), generator=generator).to(rows) * 2 - 1
    weights = [
        torch.zeros_like(rows)
        .index_fill_(0, torch.tensor(row, device=rows.device), 1.0)
        .mul_(sign)
        .reshape(values[at].shape)
        for row, sign in zip(looked_at, signs, strict=True)
    ]
    try:
        changes, missed = problem.first_order(drawn.inputs, moved, at, weights)
    except TaskError:
        return {}

    def unit_of(row: int, weight: Tensor, miss: float) -> float:
        step = float(size[row]) / _STEP
        answer = map_tensors(lambda t: t + step * weight if t is values[at] else t, expected.values)
        ratio = compare(expected, stored_as(expected.native, answer)).error_ratio
        return max(step / ratio, miss / math.sqrt(rows.shape[1])) if 1 < ratio < math.inf else math.inf

    units = [unit_of(*one) for one in zip(looked_at, weights, missed, strict=True)]
    # the square of a sum by random signs is, in the mean, the sum of the squares
    found = {
        name: max(abs(total) / math.sqrt(rows.shape[1]) / unit for total, unit in zip(sums, units, strict=True))
        for name, sums in changes.items()
    }
    return {name: most for name, most in found.items() if math.isfinite(most)}


def _operands(drawn: Drawn) -> Iterator[tuple[str, Tensor]]:
    named = [(f"input:{path}", leaf) for path, leaf in leaves(drawn.inputs)]
    named += [(f"state:{name}", tensor) for name, tensor in drawn.state.items() if tensor.is_floating_point()]
    for name, leaf in named:
        if isinstance(leaf, Tensor) and leaf.numel() and not leaf.is_complex():
            yield name, leaf


def _other(operand: str, tensor: Tensor, other: Tree, generator: Generator) -> Tensor:
    """Other values of the same sign, up to three times as large; of an integer input, those of another draw."""
    if tensor.is_floating_point():
        return tensor.double() * (torch.rand(tensor.shape, generator=generator, device=tensor.device) * 2.5 + 0.5)
    found = dict(leaves(other)).get(operand.removeprefix("input:")) if operand.startswith("input:") else None
    return found if isinstance(found, Tensor) and found.shape == tensor.shape else tensor


def _moved(problem: Problem, drawn: Drawn, others: Mapping[str, Tensor], native: Tree) -> Tree | None:
    """The reference's float64 answer with some operands replaced, in the formats of its own, `native`."""
    inputs = map_leaves(
        lambda path, t: others[f"input:{path}"].to(t.dtype) if f"input:{path}" in others else t, drawn.inputs
    )
    state = {name: others.get(f"state:{name}", tensor).to(tensor.dtype) for name, tensor in drawn.state.items()}
    alters = any(name.startswith("state:") for name in others)
    try:
        problem.restore(Drawn(drawn.seed, drawn.battery, inputs, state, alters=alters))
        return stored_as(native, problem.reference(inputs).values)
    except TaskError:
        return None
    finally:
        problem.restore(drawn)


@dataclass(frozen=True)
class AdmissionResult:
    """What became of one null kernel. `refused` is as it should be; `error_ratio` > 1 by how much it failed."""

    case: str
    battery: str
    null_kernel: str
    refused: bool
    error_ratio: float


def passing(results: Sequence[AdmissionResult]) -> list[tuple[str, str]]:
    """(case, null kernel) that no battery refused. One that refuses it is enough: a candidate has to pass them all."""
    refused = {(r.case, r.null_kernel) for r in results if r.refused}
    tried = dict.fromkeys((r.case, r.null_kernel) for r in results)
    return [one for one in tried if one not in refused]


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
        if why := _unanswerable(problem):  # all else would follow from it
            return [f"{why}, so that no kernel can be right"]
        results = list(tried(problem, ("own",)))
        if passing(results):  # the other batteries may still catch it
            results += tried(problem, CORE[1:])
        matter = operands_that_matter(problem) if not problem.slow else {}
    except TaskError as error:
        return [f"the task could not be examined: {error}"]
    names = [name for _, name in passing(results)]
    more = f" (and {len(names) - 1} other null kernels)" if len(names) > 1 else ""
    doubts = [
        f"a kernel that {_MEANING[name]} passes case {case} with all inputs{more}; verdicts mean little"
        for name in names[:1]
    ]
    if dead := [operand for operand, matters in matter.items() if not matters]:
        doubts.append(f"the answer of case {case} does not depend on {', '.join(dead)}: a kernel may leave that out")
    if problem.slow:
        doubts.append(f"the reference is slow: whether its answer depends on every operand of case {case} is not known")
    return doubts


def _unanswerable(problem: Problem) -> str:
    """Why the reference has no answer that a launch plan could give; "" where nothing speaks against it."""
    if problem.slow:
        return ""
    inputs, other = problem.inputs(1) or (), problem.inputs(2) or ()
    answers = [_shapes(problem.native(one)) for one in (inputs, other)]
    if not any(answers):
        return "forward returns no tensor"
    if answers[0] != answers[1] and _shapes(inputs) == _shapes(other):
        return "the shape of what forward returns depends on the values of its inputs"
    if problem.draws_numbers(inputs):
        return "forward draws random numbers"
    return ""


def _shapes(tree: Tree) -> list[torch.Size]:
    return [tensor.shape for tensor in tensors(tree)]


def tried(problem: Problem, batteries: Sequence[str] = BATTERIES) -> Iterator[AdmissionResult]:
    """What becomes of the null kernels in a case. The task is sound when each is refused with some battery."""
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


def too_large(task: TaskSpec, memory_bytes: int) -> str:
    """Why the timed case can never be judged in so much memory, and what could; "" where it may fit."""
    size = task.main.bytes_moved
    most = (memory_bytes - _CONTEXTS_BYTES) // _LEAST_HELD
    if size <= most:
        return ""
    return (
        f"task {task.name}: its inputs, parameters and outputs take {size / _GB:.1f} GB, and judging them at least "
        f"{(_LEAST_HELD * size + _CONTEXTS_BYTES) / _GB:.1f} GB; there are {memory_bytes / _GB:.1f} GB of GPU memory, "
        f"which would do for {max(0, most) / _GB:.1f} GB of tensors: make the sizes of the task's first case smaller"
    )
