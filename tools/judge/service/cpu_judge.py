"""The judge without a GPU: a trusted worker that knows the task, the secret, the inputs and the answers.

It draws inputs for a frozen plan and later compares what came back. Its caller sees inputs (as blobs to hand on),
results, and the seed of inputs that have been judged; never answers.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from kerneltune.tools.judge.correctness import comparison as comparing
from kerneltune.tools.judge.correctness.inputs import case_seed
from kerneltune.tools.judge.correctness.problem import Problem, describe, expanded
from kerneltune.tools.judge.correctness.reference_model import Overdue, limited
from kerneltune.tools.judge.correctness.sample import TimedSample, written_of
from kerneltune.tools.judge.service.admission import too_large, warnings_of
from kerneltune.tools.replay.replay import dtype_named
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema.codec import DecodeError, Json, one_line
from kerneltune.tools.schema.errors import CaseFailed, TaskError
from kerneltune.tools.schema.messages import (
    ANSWER_LIMIT_S,
    Compare,
    ComparisonReply,
    NewInputs,
    Open,
    Opened,
    PreparedInputs,
)
from kerneltune.tools.schema.task import TaskSpec, rebuilt
from kerneltune.tools.schema.verdict import CaseResult
from kerneltune.tools.task.load import SMALL, TaskFile, unchanged_task


class CpuJudge:
    """Answers for one task."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._problems: dict[str, Problem] = {}
        self._file: TaskFile | None = None
        self._spec: TaskSpec | None = None
        self._drawn: dict[tuple[str, str, str], Any] = {}
        self._sample: TimedSample | None = None
        self._no_sample = ""

    def open(self, request: Open) -> Opened:
        """Load and describe the task; the user's mistakes come back as one line."""
        try:
            self._file = expanded(unchanged_task(request.path, request.sha256))
            self._spec = describe(self._file)
        except TaskError as error:
            return Opened(problem=str(error), failed_case=error.case if isinstance(error, CaseFailed) else "")
        if request.gpu_memory_bytes and (problem := too_large(self._spec, request.gpu_memory_bytes)):
            return Opened(problem=problem)
        small = next((dict(c.overrides) for c in self._file.cases if c.name == SMALL and not self._file.declared), {})
        return Opened(task=self._spec, notes=tuple(warnings_of(self._file, self._spec)), small=small)

    def new_inputs(self, request: NewInputs, _: Sequence[bytes] = ()) -> tuple[Any, ...]:
        """Draw the inputs of a case for this plan; that the task's own code fails is an answer, too."""
        try:
            with limited(ANSWER_LIMIT_S):
                return self._new_inputs(request)
        except (TaskError, Overdue) as error:
            return PreparedInputs((), applies=False, problem=str(error)), []

    def _new_inputs(self, request: NewInputs) -> tuple[Any, ...]:
        if request.sampled:
            sample = self._timed_sample()
            return PreparedInputs((), parts=tuple(sample.parts)), [], [sample.memory.fd]
        problem = self._problem(request.case)
        seed = case_seed(self._secret, request.plan_sha256, request.case, request.battery)
        drawn = problem.draw(seed, request.battery)
        if drawn is None:
            return PreparedInputs((), applies=False, short=request.battery in problem.left_out), []
        self._drawn = {(request.plan_sha256, request.case, request.battery): drawn}
        blobs = drawn.blobs()
        leads = {name: its.lead_bytes for name in blobs if (its := drawn.contract(name)) and its.lead_bytes}
        return PreparedInputs(tuple(blobs), leads), list(blobs.values())

    def compare(self, request: Compare, blobs: list[bytes]) -> ComparisonReply:
        """Compare outputs with the float64 reference on the inputs that were drawn for this plan; that the task's own
        code fails, or that the outputs are none, is an answer, too."""
        try:
            with limited(ANSWER_LIMIT_S):
                return self._compare(request, blobs)
        except (TaskError, Overdue) as error:
            return ComparisonReply(_nothing(request), problem=str(error))
        except DecodeError as error:
            return ComparisonReply(_nothing(request), malformed=str(error))

    def _compare(self, request: Compare, blobs: list[bytes]) -> ComparisonReply:
        if request.sampled:
            return self._compare_sample(request, blobs)
        drawn = self._drawn[(request.plan_sha256, request.case, request.battery)]
        problem = self._problem(request.case)
        with _of_a_reply():
            actual = from_blobs(request.outputs, blobs)
        result = comparing.judge(problem, drawn, actual, case=request.case, battery=request.battery)
        return ComparisonReply(result, drawn.seed)

    def _compare_sample(self, request: Compare, blobs: list[bytes]) -> ComparisonReply:
        """Compare the elements that were written, as far as it can be computed what is right for them."""
        assert self._sample is not None
        shapes, written = [], []
        with _of_a_reply():
            for leaf in request.outputs:
                shapes.append(torch.Size(leaf["shape"]))
                at, dtype = leaf["$blob"], dtype_named(leaf["dtype"])
                written.append(written_of(blobs[at], blobs[at + 1], dtype, shapes[-1].numel()))
        result, compared = self._sample.compare(shapes, written)
        return ComparisonReply(result, compared=compared)

    def _timed_sample(self) -> TimedSample:
        """The timed shape, drawn at the first request for it. Raises TaskError, with the same reason again."""
        assert self._file is not None
        assert self._spec is not None
        if self._sample is None and not self._no_sample:
            small = next((case.name for case in self._spec.cases if case.runs_on_cpu), "")
            try:
                self._sample = TimedSample(self._file, self._spec.main, small)
            except (TaskError, Overdue) as error:
                self._no_sample = str(error)
        if self._sample is None:
            raise TaskError(self._no_sample)
        return self._sample

    def _problem(self, case: str) -> Problem:
        assert self._file is not None, "open a task first"
        if case not in self._problems:
            self._problems[case] = Problem.load(self._file, case)
        return self._problems[case]


def _nothing(request: Compare) -> CaseResult:
    return CaseResult(request.case, request.battery, ok=True, error_ratio=0.0, max_abs_error=0.0)


@contextlib.contextmanager
def _of_a_reply() -> Iterator[None]:
    """Raise DecodeError for outputs of an interpreter that are none."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise DecodeError(one_line(str(error), 200)) from error


def from_blobs(tree: Json, blobs: list[bytes]) -> Any:
    """Rebuild an output tree from {"$blob": i, "dtype": …, "shape": …} leaves."""

    def tensor(leaf: Json, _: str) -> torch.Tensor:
        data = np.frombuffer(bytearray(blobs[leaf["$blob"]]), dtype=np.uint8)
        dtype = dtype_named(leaf["dtype"])
        flat = torch.from_numpy(data).view(dtype) if data.size else torch.empty(0, dtype=dtype)
        return flat.reshape(leaf["shape"])

    return rebuilt(tree, {"$blob": tensor})


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
