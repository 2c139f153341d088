"""The timed shape without a GPU: its inputs, drawn once, and the right answer for a few of its elements.

Where rows of an output follow from rows of the inputs, the reference is run on these alone. Which rows do, along which
axes, is found out on a small case: an operand is changed everywhere but in one row, and the output looked at there.
"""

import contextlib
import copy
import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from kerneltune.tools.judge.correctness import comparison
from kerneltune.tools.judge.correctness.gates import Expected
from kerneltune.tools.judge.correctness.problem import Problem
from kerneltune.tools.judge.correctness.tree import (
    is_float8,
    leaves,
    map_leaves,
    named,
    nbytes,
    readable_bytes,
    rows_at,
    stored_as,
    tensors,
)
from kerneltune.tools.replay.shared_memory import PERIOD, SharedMemory
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.schema.messages import MemoryPart
from kerneltune.tools.schema.task import CaseSpec, contract_of, tensors_of
from kerneltune.tools.schema.verdict import CaseResult
from kerneltune.tools.task.load import TaskFile

MOST_BYTES = 2 << 30  # of inputs and parameters that do not repeat
# of the reference for some elements: what every candidate may take, and what may be taken once
_SOFT_FLOPS, _SOFT_BYTES = 1e9, 8e6
_HARD_FLOPS, _HARD_BYTES = 4e10, 1e9
_KEPT_S = 0.5  # answers that took longer are kept
_MOST_ANCHORS = 4096
_MOST_OPERANDS = 24  # parameters and inputs; beyond that, parameters are taken whole
_MOST_KEPT = 4
_DRAWS = frozenset("randn rand randint".split())

Axes = Mapping[int, Mapping[str, int]]  # of one output: by its axis, the axes of operands that go with it


class Repeating(TorchDispatchMode):
    """Tensors of many random values repeat some of them, and so does what follows from them element by element."""

    def __init__(self, memory: SharedMemory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        if not given and (made := self._made(op, args, kwargs)) is not None:
            return made
        large = [tensor for tensor in given if self._memory.holds(tensor)]
        if not large or op.is_view:
            return op(*args, **kwargs)
        if op._schema.is_mutable and any(arg is tensor for arg in args[:1] for tensor in large):
            raise TaskError("its inputs are changed in place after they were drawn")
        if (made := self._by_element(op, args, kwargs, given)) is not None:
            return made
        if nbytes(large) > MOST_BYTES:
            raise TaskError(f"its inputs are made of {nbytes(large) / 1e9:.1f} GB in steps that cannot be repeated")
        return op(*args, **kwargs)

    def _made(self, op: Any, args: Any, kwargs: Any) -> Tensor | None:
        """What an operator makes of a size alone, where that is large."""
        at = next((i for i, argument in enumerate(op._schema.arguments) if argument.name == "size"), len(args))
        shape = tuple(args[at]) if at < len(args) else ()
        if math.prod(shape) <= PERIOD:
            return None
        if op._schema.name.partition("::")[2] not in _DRAWS:
            if math.prod(shape) > MOST_BYTES // 4:
                raise TaskError(f"its inputs have {math.prod(shape):,} elements that are not simply random")
            return None
        return self._memory.spread(op(*args[:at], [PERIOD], *args[at + 1 :], **kwargs), shape)

    def _by_element(self, op: Any, args: Any, kwargs: Any, given: Sequence[Tensor]) -> Tensor | None:
        whole = [tensor for tensor in given if tensor.dim()]
        if len(whole) != 1 or not (torch.Tag.pointwise in op.tags or "_to_copy" in op._schema.name):
            return None
        once = self._memory.once(whole[0])
        if once is None:
            return None
        made = op(*tree_map(lambda x: once if x is whole[0] else x, args), **kwargs)
        fits = isinstance(made, Tensor) and made.shape == once.shape
        return self._memory.spread(made, tuple(whole[0].shape)) if fits else None


@dataclass(frozen=True)
class Written:
    """What programs wrote of one output: the numbers of its elements, ascending, and their values."""

    elements: Tensor
    values: Tensor


@dataclass(frozen=True)
class _Box:
    """Some rows of outputs, by axis, out of how many; all of the axes that are not named."""

    rows: Mapping[int, Tensor]
    counts: Mapping[int, int]

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same rows."""
        return tuple((axis, tuple(rows.tolist())) for axis, rows in self.rows.items())

    def of_output(self, output: Tensor) -> Tensor:
        """Those rows."""
        for axis, rows in self.rows.items():
            output = rows_at(output, axis, rows)
        return output

    def places(self, elements: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Which of the elements of an output of that shape are in the box, and their numbers in it."""
        coordinates = list(torch.unravel_index(elements, tuple(shape)))
        sizes = list(shape)
        inside = torch.ones(len(elements), dtype=torch.bool)
        for axis, rows in self.rows.items():
            found = torch.searchsorted(rows, coordinates[axis].contiguous()).clamp_max(len(rows) - 1)
            inside &= rows[found] == coordinates[axis]
            coordinates[axis], sizes[axis] = found, len(rows)
        number = torch.zeros_like(elements)
        for coordinate, size in zip(coordinates, sizes, strict=True):
            number = number * size + coordinate
        return inside, number[inside]


class TimedSample:
    """The timed case of a task, for a session: `parts` of a `memory` to hand on, and what is right for some of its
    elements."""

    def __init__(self, file: TaskFile, case: CaseSpec, small: str) -> None:
        """Draw inputs and parameters; `small` is a case on which its axes are looked at. Raises TaskError, with the
        reason for which there can be no sample."""
        self.case, self.memory = case, SharedMemory()
        self.parts: list[MemoryPart] = []
        self._kept: dict[tuple[Any, ...], Expected] = {}
        self._shapes = [torch.Size(spec.shape) for _, spec in tensors_of(case.outputs)]
        self._axes = _independent_axes(Problem.load(file, small))
        if not any(self._axes) or len(self._axes) != len(self._shapes):
            raise TaskError("its rows do not follow from rows of its inputs alone")
        with Repeating(self.memory):
            self._problem = Problem.load(file, case.name, seed=secrets.randbits(62))
            self._inputs = self._problem.inputs(secrets.randbits(62)) or ()
            assert self._problem.precision  # looked up here: where it is not declared, inputs are drawn for it
        found: dict[str, Tensor] = {}
        for name, tensor in named(self._inputs, self._problem.state()).items():
            behind = readable_bytes(tensor, contract_of(file.contracts, name))
            part, found[name] = self.memory.share(name, tensor, behind)
            self.parts.append(part)
            if self.memory.nbytes > MOST_BYTES:
                raise TaskError(f"its inputs and parameters take over {MOST_BYTES / 1e9:.1f} GB")
        self._inputs = map_leaves(lambda path, _: found[f"input:{path}"], self._inputs)
        self.memory.seal(self.parts)
        self._operands = found

    def compare(self, shapes: Sequence[torch.Size], written: Sequence[Written]) -> tuple[CaseResult, int]:
        """Compare what was written of outputs of these shapes with the reference, as far as that can be computed, and
        say how many elements that was. Raises TaskError with the reason where nothing can be."""
        if list(shapes) != self._shapes:
            found, wanted = (", ".join(map(str, map(list, those))) for those in (shapes, self._shapes))
            return CaseResult(self.case.name, "own", False, math.inf, math.inf, f"shape {found}, expected {wanted}"), 0
        first, chosen, axes = self._chosen(written, shapes)
        box = self._box(written[first], shapes[first], axes)
        expected = self._expected(box, chosen, axes)
        result, compared = self._judged(box, expected, chosen, shapes, written)
        if not result.ok and not self._holds(box, expected, chosen, axes):
            raise TaskError("its rows do not follow from rows of its inputs alone at this size")
        return result, compared

    def _chosen(self, written: Sequence[Written], shapes: Sequence[torch.Size]) -> tuple[int, list[int], Axes]:
        """The first output of which something was written, and all whose axes are the same: one before it may be among
        them, which programs that were not run write."""
        for first, axes in enumerate(self._axes):
            if axes and len(written[first].elements):
                same = [
                    j
                    for j, others in enumerate(self._axes)
                    if all(others.get(a) == axes[a] and shapes[j][a] == shapes[first][a] for a in axes)
                ]
                return first, same, axes
        raise TaskError("the programs that were run write none of the rows that can be computed alone")

    def _box(self, written: Written, shape: torch.Size, axes: Axes) -> _Box:
        """The rows of some of the elements that were written: as many as every candidate may take; else those of one,
        once and for all, as far as candidates write there."""
        elements, counts = written.elements, {axis: shape[axis] for axis in axes}
        ends = torch.tensor([len(elements) - 1, 0])
        drawn = torch.cat([ends, torch.randperm(len(elements))])
        for kept in self._kept:
            box = _Box({axis: torch.tensor(rows) for axis, rows in kept}, counts)
            if bool(box.places(elements, shape)[0].any()):
                return box
        count = _MOST_ANCHORS
        while True:
            coordinates = torch.unravel_index(elements[drawn[:count]], tuple(shape))
            box = _Box({axis: _ascending(coordinates[axis]) for axis in axes}, counts)
            flops, size = self._cost(box, axes)
            if flops <= _SOFT_FLOPS and size <= _SOFT_BYTES:
                return box
            if count == 1:
                break
            count //= 2
        if flops > _HARD_FLOPS or size > _HARD_BYTES:
            raise TaskError(f"one row takes {flops / 1e9:.0f} GFLOP and {size / 1e9:.1f} GB to be computed")
        return box

    def _cost(self, box: _Box, axes: Axes) -> tuple[float, float]:
        """Floating-point operations, and bytes of operands, that a run of the reference takes for a box."""
        share = {axis: len(rows) / box.counts[axis] for axis, rows in box.rows.items()}
        size = 0.0
        for name, tensor in self._operands.items():
            of_it = [share[axis] for axis, operands in axes.items() if name in operands]
            size += nbytes(tensor) * math.prod(of_it)
        return self.case.flops * math.prod(share.values()), size

    def _expected(self, box: _Box, chosen: Sequence[int], axes: Axes) -> Expected:
        """What is right for a box; kept where it is expensive."""
        if box.key in self._kept:
            return self._kept[box.key]
        began_s = time.monotonic()
        expected = _answer(self._problem, self._inputs, box, axes)
        native, values = (list(tensors(tree)) for tree in (expected.native, expected.values))
        expected = replace(expected, native=[native[j] for j in chosen], values=[values[j] for j in chosen])
        if time.monotonic() - began_s > _KEPT_S and len(self._kept) < _MOST_KEPT:
            self._kept[box.key] = expected
        return expected

    def _judged(
        self,
        box: _Box,
        expected: Expected,
        chosen: Sequence[int],
        shapes: Sequence[torch.Size],
        written: Sequence[Written],
    ) -> tuple[CaseResult, int]:
        """The result of a comparison in which what was not written is right."""
        actual, compared = [], 0
        for j, native, values in zip(chosen, expected.native, expected.values, strict=True):
            exact = stored_as(native, values)
            inside, places = box.places(written[j].elements, shapes[j])
            found = written[j].values
            if found.dtype != exact.dtype:
                actual.append(torch.zeros(exact.shape, dtype=found.dtype))
                continue
            flat = _bits(exact.clone().reshape(-1))
            flat[places] = _bits(found)[inside]
            actual.append(flat.view(exact.dtype).reshape(exact.shape))
            compared += len(places)
        result = comparison.compare(expected, actual, case=self.case.name, battery="own")
        return result if result.ok else replace(result, detail=_worst(box, expected, actual)), compared

    def _holds(self, box: _Box, expected: Expected, chosen: Sequence[int], axes: Axes) -> bool:
        """Whether the box's answer is the same with further rows beside it."""
        more = {}
        for axis, rows in box.rows.items():
            more[axis] = _ascending(torch.cat([rows, torch.randint(0, box.counts[axis], (3,))]))
        both = _answer(self._problem, self._inputs, _Box(more, box.counts), axes)
        inner = _Box({axis: torch.searchsorted(more[axis], rows) for axis, rows in box.rows.items()}, box.counts)
        again = [inner.of_output(t) for j, t in enumerate(tensors(both.values)) if j in chosen]
        return all(_alike(one, two) for one, two in zip(tensors(expected.values), again, strict=True))


def _worst(box: _Box, expected: Expected, actual: Sequence[Tensor]) -> str:
    """The largest error, with its place in the whole output."""
    errors = [
        torch.nan_to_num((a.double() - v.double()).abs(), math.inf)
        for a, v in zip(actual, expected.values, strict=True)
    ]
    j = max(range(len(errors)), key=lambda j: float(errors[j].max()))
    flat = errors[j].argmax()
    index = [int(i) for i in torch.unravel_index(flat, errors[j].shape)]
    place = [int(box.rows[axis][i]) if axis in box.rows else i for axis, i in enumerate(index)]
    exact, got = (float(t.reshape(-1)[flat].double()) for t in (expected.values[j], actual[j]))
    return f"worst at {place}: expected {exact:.9g}, got {got:.9g}"


def _answer(problem: Problem, inputs: tuple[Any, ...], box: _Box, axes: Axes) -> Expected:
    """What is right for a box, without noise: it is mistakes of place that are looked for."""

    def part(name: str, tensor: Tensor) -> Tensor:
        for axis, rows in box.rows.items():
            at = axes[axis].get(name)
            if at is not None:  # heads that share a key head name it several times
                tensor = rows_at(tensor, at, rows * tensor.shape[at] // box.counts[axis])
        return tensor

    with _model_of(problem, part):
        return problem.expect(map_leaves(lambda path, t: part(f"input:{path}", t), inputs), most_samples=0)


@contextlib.contextmanager
def _model_of(problem: Problem, part: Any) -> Iterator[None]:
    """Give the reference parts of its parameters for the while."""
    whole = problem.model
    memo: dict[int, Any] = {}
    for name, tensor in (*whole.named_parameters(), *whole.named_buffers()):
        taken = part(f"state:{name}", tensor.detach())
        memo[id(tensor)] = nn.Parameter(taken, requires_grad=False) if isinstance(tensor, nn.Parameter) else taken
    problem.model = copy.deepcopy(whole, memo)
    try:
        yield
    finally:
        problem.model = whole


def _independent_axes(problem: Problem) -> list[Axes]:
    """Of each output, the axes of which each row follows from one row of some operands."""
    drawn, other = problem.draw(secrets.randbits(32)), problem.inputs(secrets.randbits(32))
    if problem.slow:
        raise TaskError("the reference is too slow for it to be found out which of its rows depend on each other")
    if drawn is None or other is None:
        return []
    outputs = list(tensors(problem.native(drawn.inputs)))
    search = _AxisSearch(problem, drawn.inputs, dict(leaves(other)), outputs)
    found = [search.of_output(j) for j in range(len(outputs))]
    problem.restore(drawn)
    return found


@dataclass
class _AxisSearch:
    """Looks for such axes on one small case."""

    problem: Problem
    inputs: tuple[Any, ...]
    other: dict[str, Any]
    outputs: list[Tensor]

    def __post_init__(self) -> None:
        self._operands = {f"input:{path}": t for path, t in leaves(self.inputs) if isinstance(t, Tensor) and t.dim()}
        state = {f"state:{n}": t for n, t in self.problem.state().items() if t.dim() and t.is_floating_point()}
        if len(state) + len(self._operands) <= _MOST_OPERANDS:
            self._operands |= state

    def of_output(self, j: int) -> Axes:
        """The axes of one output: all together where that holds, else the first that does."""
        found = {}
        for axis, size in enumerate(self.outputs[j].shape):
            if size > 1 and (operands := self._of_axis(j, axis)):
                found[axis] = operands
        if len(found) < 2 or self._verified(j, found):
            return found
        return next(({axis: operands} for axis, operands in found.items()), {})

    def _of_axis(self, j: int, axis: int) -> dict[str, int]:
        row = self.outputs[j].shape[axis] // 2
        found = {}
        for name, tensor in self._operands.items():
            at = next((at for at in range(tensor.dim()) if self._follows(j, axis, row, name, at)), None)
            if at is not None:
                found[name] = at
        for operands in (found, {n: a for n, a in found.items() if n.startswith("input:")}):
            if operands and self._verified(j, {axis: operands}):
                return operands
        return {}

    def _follows(self, j: int, axis: int, row: int, name: str, at: int) -> bool:
        """Whether that row of the output stays as it is when the operand changes in all rows but one."""
        tensor, count = self._operands[name], self.outputs[j].shape[axis]
        size = tensor.shape[at]
        if size < 2 or count % size:
            return False
        changed = self._changed(name, tensor).clone()
        mine = row * size // count
        _bits(changed).select(at, mine).copy_(_bits(tensor).select(at, mine))
        try:
            found = list(tensors(self._run(name, changed)))[j]
        except TaskError:
            return False
        return _alike(found.select(axis, row), self.outputs[j].select(axis, row))

    def _changed(self, name: str, tensor: Tensor) -> Tensor:
        if name.startswith("input:"):
            other = self.other.get(name.removeprefix("input:"))
            return other if isinstance(other, Tensor) and other.shape == tensor.shape else tensor.flip(0)
        return (tensor.double() * (torch.rand(tensor.shape, dtype=torch.float64) + 0.5)).to(tensor.dtype)

    def _run(self, name: str, changed: Tensor) -> Any:
        inputs = map_leaves(lambda path, t: changed if f"input:{path}" == name else t, self.inputs)
        with _model_of(self.problem, lambda path, t: changed if path == name else t):
            return self.problem.native(inputs)

    def _verified(self, j: int, axes: Axes) -> bool:
        """Whether the reference gives these rows when it is given no others."""
        shape = self.outputs[j].shape
        rows = {axis: _ascending(torch.tensor([0, shape[axis] // 2, shape[axis] - 1])) for axis in axes}
        box = _Box(rows, {axis: shape[axis] for axis in axes})
        try:
            found = list(tensors(_answer(self.problem, self.inputs, box, axes).native))
        except TaskError:
            return False
        return len(found) > j and _alike(found[j], box.of_output(self.outputs[j]))


def _ascending(rows: Tensor) -> Tensor:
    found: Tensor = torch.unique(rows)
    return found


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if is_float8(tensor) else tensor


def _alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return torch.allclose(one.double(), other.double(), rtol=1e-3, atol=1e-5, equal_nan=True)


def written_of(elements: bytes, values: bytes, dtype: torch.dtype, count: int) -> Written:
    """What a sample's reply says of one output of `count` elements. Raises ValueError for what cannot be."""
    numbers = torch.from_numpy(np.frombuffer(bytearray(elements), np.int64))
    found = torch.from_numpy(np.frombuffer(bytearray(values), np.uint8)).view(dtype)
    inside = len(numbers) == 0 or (int(numbers.min()) >= 0 and int(numbers.max()) < count)
    if len(numbers) != len(found) or not inside:
        raise ValueError(f"{len(found)} values for {len(numbers)} elements, of {count} that there are")
    return Written(numbers, found)
