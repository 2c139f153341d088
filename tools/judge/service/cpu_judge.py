"""The judge without a GPU: a trusted worker that knows the task, the secret, the inputs and the answers.

It draws inputs for a frozen plan and later compares what came back. Its caller sees inputs (as blobs to hand on),
results, and the seed of inputs that have been judged; never answers.
"""

import functools
import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from kerneltune.tools.judge.correctness import comparison as comparing
from kerneltune.tools.judge.correctness.inputs import case_seed
from kerneltune.tools.judge.correctness.problem import Problem, describe, expanded
from kerneltune.tools.judge.correctness.reference_model import Drawn
from kerneltune.tools.judge.correctness.tree import is_float8, leaves, map_leaves, map_tensors, stored_as, tensors
from kerneltune.tools.judge.service.admission import warnings_of
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.schema.messages import Compare, ComparisonReply, NewInputs, Open, Opened, PreparedInputs
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import CaseResult
from kerneltune.tools.task.load import SMALL, TaskFile, find_task

MOST_ROW_FLOPS, MOST_ROW_BYTES = 2e9, 32e6  # of the rows of a sample: some seconds with all that the tolerance asks for


class CpuJudge:
    """Answers for one task."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._problems: dict[str, Problem] = {}
        self._file: TaskFile | None = None
        self._spec: TaskSpec | None = None
        self._drawn: dict[tuple[str, str, str], Any] = {}

    def open(self, request: Open) -> Opened:
        """Load and describe the task; the user's mistakes come back as one line."""
        try:
            self._file = expanded(find_task(request.path))
            self._spec = describe(self._file)
        except TaskError as error:
            return Opened(problem=str(error))
        small = next((dict(c.overrides) for c in self._file.cases if c.name == SMALL and not self._file.declared), {})
        return Opened(task=self._spec, notes=tuple(warnings_of(self._file, self._spec)), small=small)

    def new_inputs(self, request: NewInputs, _: Sequence[bytes] = ()) -> tuple[PreparedInputs, list[Any]]:
        """Draw the inputs of a case for this plan."""
        problem = self._problem(request.case)
        seed = case_seed(self._secret, request.plan_sha256, request.case, request.battery)
        drawn = problem.draw(seed, request.battery)
        if drawn is None:
            return PreparedInputs((), applies=False, short=request.battery in problem.left_out), []
        self._drawn = {(request.plan_sha256, request.case, request.battery): drawn}
        blobs = drawn.blobs()
        return PreparedInputs(tuple(blobs)), list(blobs.values())

    def compare(self, request: Compare, blobs: list[bytes]) -> ComparisonReply:
        """Compare outputs with the float64 reference on the inputs that were drawn for this plan."""
        drawn = self._drawn[(request.plan_sha256, request.case, request.battery)]
        problem = self._problem(request.case)
        actual = from_blobs(request.outputs, blobs)
        if request.sampled:
            return self._compare_sample(problem, drawn, actual, request)
        result = comparing.judge(problem, drawn, actual, case=request.case, battery=request.battery)
        return ComparisonReply(result, drawn.seed)

    def _compare_sample(self, problem: Problem, drawn: Drawn, actual: Any, request: Compare) -> ComparisonReply:
        """Compare the elements that were written, with the answer for the rows that they are in."""
        nothing = CaseResult(request.case, request.battery, ok=True, error_ratio=0.0, max_abs_error=0.0)
        outputs, by_row = list(tensors(actual)), self._by_row
        counts = {(len(leaf),) for path, leaf in leaves(drawn.inputs) if path in by_row}
        if not by_row or {tuple(t.shape[:1]) for t in outputs} != counts:
            return ComparisonReply(nothing, drawn.seed, problem="its rows do not follow from rows of its inputs alone")
        written = [_written(leaf) for leaf in outputs]
        rows = self._few_of(torch.stack([w.reshape(len(w), -1).any(1) for w in written]).any(0), request.case)
        problem.restore(drawn)
        inputs = map_leaves(lambda path, t: _rows_of(t, rows) if path in by_row else t, drawn.inputs)
        try:
            expected = problem.expect(inputs)
        except TaskError:
            return ComparisonReply(nothing, drawn.seed, problem="the reference does not run on some rows of its inputs")
        exact = list(tensors(stored_as(expected.native, expected.values)))
        found, marks = [_rows_of(t, rows) for t in outputs], [_rows_of(w, rows) for w in written]
        if [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in exact]:
            found = [_where(*three) for three in zip(marks, found, exact, strict=True)]
        given = iter(found)
        result = comparing.compare(
            expected, map_tensors(lambda _: next(given), actual), case=request.case, battery=request.battery
        )
        return ComparisonReply(result, drawn.seed, sum(int(mark.sum()) for mark in marks))

    def _few_of(self, marked: torch.Tensor, case: str) -> torch.Tensor:
        """Numbers of the rows that are marked, as many as can be computed in some seconds."""
        assert self._spec is not None
        spec, rows = self._spec.case(case), marked.nonzero()[:, 0]
        share = min(MOST_ROW_FLOPS / max(1, spec.flops), MOST_ROW_BYTES / max(1, spec.bytes_moved))
        return rows[torch.randperm(len(rows))[: max(1, int(share * len(marked)))]]

    @functools.cached_property
    def _by_row(self) -> frozenset[str]:
        """Paths of the inputs of which each output row needs one row alone, found out on a small case; none when there
        is more to it."""
        assert self._file is not None
        small = next((case for case in self._spec.cases if case.runs_on_cpu), None) if self._spec else None
        if small is None:
            return frozenset()
        problem = Problem.load(self._file, small.name)
        drawn = problem.draw(secrets.randbits(32))
        if drawn is None:
            return frozenset()
        outputs = list(tensors(problem.native(drawn.inputs)))
        count = outputs[0].shape[0] if outputs and outputs[0].dim() else 0
        if count < 3 or any(not t.dim() or t.shape[0] != count for t in outputs):
            return frozenset()
        named = [(path, t) for path, t in leaves(drawn.inputs) if isinstance(t, torch.Tensor)]
        paths = frozenset(path for path, t in named if t.shape[:1] == (count,))
        rows = torch.tensor([0, count // 2, count - 1])
        some = map_leaves(lambda path, t: _rows_of(t, rows) if path in paths else t, drawn.inputs)
        try:
            part = list(tensors(problem.native(some)))
        except TaskError:
            return frozenset()
        wanted = [_rows_of(t, rows) for t in outputs]
        return paths if all(map(_alike, wanted, part)) else frozenset()

    def _problem(self, case: str) -> Problem:
        assert self._file is not None, "open a task first"
        if case not in self._problems:
            self._problems[case] = Problem.load(self._file, case)
        return self._problems[case]


def _written(output: torch.Tensor) -> torch.Tensor:
    """Marks of the elements that are no longer all ones."""
    raw = output.contiguous().reshape(-1).view(torch.uint8).reshape(*output.shape, -1)
    return (raw != 0xFF).any(-1)


def _rows_of(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    if is_float8(tensor):  # torch cannot index these
        return tensor.view(torch.uint8).index_select(0, rows).view(tensor.dtype)
    return tensor.index_select(0, rows)


def _where(mark: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if is_float8(one):
        return torch.where(mark, one.view(torch.uint8), other.view(torch.uint8)).view(one.dtype)
    return torch.where(mark, one, other)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return torch.allclose(one.double(), other.double(), rtol=1e-3, atol=1e-5, equal_nan=True)


def from_blobs(tree: Json, blobs: list[bytes]) -> Any:
    """Rebuild an output tree from {"$blob": i, "dtype": …, "shape": …} leaves."""
    if isinstance(tree, dict) and "$blob" in tree:
        data = np.frombuffer(bytearray(blobs[tree["$blob"]]), dtype=np.uint8)
        dtype = getattr(torch, tree["dtype"])
        flat = torch.from_numpy(data).view(dtype) if data.size else torch.empty(0, dtype=dtype)
        return flat.reshape(tree["shape"])
    if isinstance(tree, dict) and "$tuple" in tree:
        return tuple(from_blobs(v, blobs) for v in tree["$tuple"])
    if isinstance(tree, dict) and "$dict" in tree:
        return {k: from_blobs(v, blobs) for k, v in tree["$dict"].items()}
    if isinstance(tree, list):
        return [from_blobs(v, blobs) for v in tree]
    return tree


def main(channel: Any) -> None:
    """Answer Open, NewInputs and Compare until the supervisor closes the socket."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))  # tracers and compilers work at the same time
    judge = CpuJudge()
    handlers: dict[type[Any], Callable[[Any, list[bytes]], Any]] = {
        Open: lambda request, _: judge.open(request),
        NewInputs: judge.new_inputs,
        Compare: judge.compare,
    }
    wire.serve(channel, handlers)
